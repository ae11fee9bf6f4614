"""An event stream by itself: what it still says when the server closes, and what it cleans up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from app.api.sse import LAST_WORDS_SECONDS, EventStream, sse_event


async def read(stream: EventStream) -> list[bytes]:
    """Everything the stream sends to a client that stays."""
    sent: list[bytes] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def send(message: Message) -> None:
        if message.get("body"):
            sent.append(message["body"])

    await stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    return sent


@pytest.mark.parametrize("stalls", [0.0, 2 * LAST_WORDS_SECONDS], ids=["quick", "stands still"])
async def test_the_last_events_are_said_although_the_server_closes(stalls: float) -> None:
    """Also where the machine stands still meanwhile."""
    closing = asyncio.Event()
    closing.set()
    closed = False

    async def events() -> AsyncIterator[bytes]:
        nonlocal closed
        try:
            for name in ("text", "text", "end"):
                await asyncio.sleep(0.01)
                time.sleep(stalls)  # noqa: ASYNC251 - nothing runs in this time
                await asyncio.sleep(0.01)
                yield sse_event("x", event=name)
        finally:
            closed = True

    sent = await read(EventStream(events(), closing=closing, farewell=b"cut"))
    assert [line.split(b"\n")[0] for line in sent] == [b"event: text", b"event: text", b"event: end"]
    assert closed


async def test_an_endless_stream_is_cut_when_the_server_closes() -> None:
    closing = asyncio.Event()
    closed = 0

    async def chatty() -> AsyncIterator[bytes]:
        nonlocal closed
        try:
            while True:
                yield b"word"
                await asyncio.sleep(0.01)
                closing.set()
        finally:
            closed += 1

    async def silent() -> AsyncIterator[bytes]:
        nonlocal closed
        try:
            await asyncio.Event().wait()
            yield b"never"
        finally:
            closed += 1

    assert (await read(EventStream(chatty(), closing=closing, farewell=b"cut")))[-1] == b"cut"
    assert await read(EventStream(silent(), closing=closing)) == []
    assert closed == 2


async def test_a_stream_that_never_started_closes_its_source() -> None:
    closed = False

    async def source() -> AsyncIterator[str]:
        nonlocal closed
        try:
            yield "begun"
            yield "never"
        finally:
            closed = True

    async def wrapped(inner: AsyncIterator[str]) -> AsyncIterator[bytes]:
        async for item in inner:
            yield item.encode()

    deltas = source()
    await anext(deltas)
    stream = EventStream(wrapped(deltas), closing=asyncio.Event(), source=deltas)

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def stuck(_: Message) -> None:
        await asyncio.Event().wait()

    await stream({"type": "http", "asgi": {"spec_version": "2.3"}}, gone, stuck)
    assert closed
