"""An event stream by itself: what it still says when the server closes, and what it cleans up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import cast

import pytest
from starlette.types import Message

from app.api.chat import turn_events
from app.api.chat.turn_events import MAX_TURNS_PER_STREAM, OpenStreams, Position, TurnStream, reader_factory
from app.api.request_middleware import HttpMetrics
from app.api.sse import SHUTDOWN_GRACE_SECONDS, EventStream, sse_event
from app.domain.views import MessageStatus
from app.errors import NotFound
from app.turns.buffer import BufferReader, ReplyBuffer
from app.turns.events import TurnEnd
from app.turns.readers import ChangeCallback
from app.turns.service import Turns
from testing.json_events import parse_json_events


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


@pytest.mark.parametrize("stalls", [0.0, 2 * SHUTDOWN_GRACE_SECONDS], ids=["quick", "stands still"])
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

    sent = await read(EventStream(events(), closing=closing, final_event=b"cut"))
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

    assert (await read(EventStream(chatty(), closing=closing, final_event=b"cut")))[-1] == b"cut"
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


class Buffers:
    """Turns, as far as a stream reads them: a buffer for each, a :class:`NotFound` for the others."""

    def __init__(self, *turn_ids: str) -> None:
        self.buffers = {turn_id: ReplyBuffer() for turn_id in turn_ids}
        for buffer in self.buffers.values():
            buffer.append("there ", time.monotonic())

    def follow(self, metrics: HttpMetrics, **offsets: int) -> AsyncGenerator[bytes]:
        stream = TurnStream(metrics)
        for turn_id, offset in offsets.items():
            assert self.add_to(stream, turn_id, offset)
        return stream.events()

    def add_to(self, stream: TurnStream, turn_id: str, offset: int = 0) -> bool:
        position = Position(offset)
        return stream.add(turn_id, position, reader_factory(cast(Turns, self), "me", turn_id, position))

    def reader(
        self, user_id: str, turn_id: str, offset: int, changed: ChangeCallback, reasoning_offset: int
    ) -> BufferReader:
        return self.buffers[turn_id].reader(offset, changed, reasoning_offset)

    def end(self, turn_id: str) -> None:
        buffer = self.buffers[turn_id]
        buffer.close(TurnEnd(MessageStatus.COMPLETE, None, None, "m", len(buffer)))


def said(piece: bytes) -> Iterator[tuple[str, str, str]]:
    """Of each event in a piece: its name, its turn and its text."""
    for event in parse_json_events(piece):
        yield event.name, event.data["turn_id"], event.data.get("text", "")


def delivered(metrics: HttpMetrics) -> float | None:
    return metrics.registry.get_sample_value("deskmate_token_delivery_seconds_count")


async def test_text_is_not_held_for_the_little_that_is_left_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless other text waits already: then all of it goes out together, at the end of the interval."""
    monkeypatch.setattr(turn_events, "SSE_COALESCE_SECONDS", 1000.0)
    for since_last_event, is_sent in ((700.0, False), (800.0, True), (1100.0, True)):
        coalescer = turn_events._Coalescer()
        coalescer._sent_at = asyncio.get_running_loop().time() - since_last_event
        coalescer.changed(False)
        assert coalescer._is_due is is_sent
        coalescer._sent_at -= 100.0
        coalescer.changed(False)
        assert coalescer._is_due is is_sent
        coalescer.changed(True)
        assert coalescer._is_due
        coalescer.cancel_timer()


async def test_text_waits_for_company_but_the_first_words_and_the_end_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_events, "SSE_COALESCE_SECONDS", 3600.0)
    turns, metrics = Buffers("a", "b"), HttpMetrics()
    a, b = turns.buffers["a"], turns.buffers["b"]
    async with asyncio.timeout(60), aclosing(turns.follow(metrics, a=0, b=6)) as stream:
        assert list(said(await anext(stream))) == [("text", "a", "there ")]
        following = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)  # the first words are sent now
        a.append("one ", time.monotonic())
        a.append("two ", time.monotonic())
        b.append("too ", time.monotonic())
        assert not (await asyncio.wait([following], timeout=0.05))[0]
        assert delivered(metrics) == 0  # what was there before its reader is not counted
        turns.end("a")
        assert list(said(await following)) == [("text", "a", "one two "), ("end", "a", ""), ("text", "b", "too ")]
        following = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert delivered(metrics) == 2  # of each event its oldest token
        b.close(NotFound("It was deleted."))
        assert list(said(await following)) == [("gone", "b", "")]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert not a._readers
    assert not b._readers


async def test_company_comes_within_its_time() -> None:
    turns = Buffers("a")
    async with asyncio.timeout(60), aclosing(turns.follow(HttpMetrics(), a=0)) as stream:
        await anext(stream)
        for word in ("one ", "two "):
            following = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            turns.buffers["a"].append(word)
            assert list(said(await following)) == [("text", "a", word)]


async def test_a_stream_that_stays_open_tells_of_what_is_added_to_it() -> None:
    turns, metrics, streams = Buffers("a", "b"), HttpMetrics(), OpenStreams()
    stream = TurnStream(metrics, stays_open=True)
    assert streams.find("me", "mine") is None
    async with asyncio.timeout(60), aclosing(stream.events(streams.register("me", "mine", stream))) as events:
        for turn_id in ("a", "b"):
            following = asyncio.ensure_future(anext(events))
            assert not (await asyncio.wait([following], timeout=0.02))[0]  # with nothing to tell, it waits
            assert streams.find("me", "mine") is stream
            assert streams.find("you", "mine") is None
            assert turns.add_to(stream, turn_id)
            assert not turns.add_to(stream, turn_id), "it is told of already"
            assert list(said(await following)) == [("text", turn_id, "there ")]
            turns.end(turn_id)
            assert list(said(await anext(events))) == [("end", turn_id, "")]
        assert turns.add_to(stream, "a"), "after its end it may be told again"
        assert [name for name, _, _ in said(await anext(events))] == ["text", "end"]
    assert streams.find("me", "mine") is None
    assert not turns.buffers["a"]._readers
    assert metrics.event_streams._value.get() == 0


async def test_of_two_streams_with_one_name_the_newer_counts() -> None:
    metrics, streams = HttpMetrics(), OpenStreams()
    older, newer = (TurnStream(metrics, stays_open=True) for _ in range(2))
    iterating = []
    for stream in (older, newer):
        events = stream.events(streams.register("me", "mine", stream))
        iterating.append((events, asyncio.ensure_future(anext(events))))
        await asyncio.sleep(0)
        assert streams.find("me", "mine") is stream
    for (events, following), left in zip(iterating, (newer, None), strict=True):
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await events.aclose()
        assert streams.find("me", "mine") is left


async def test_a_stream_takes_so_many_turns_and_no_more() -> None:
    turns = Buffers(*(str(number) for number in range(MAX_TURNS_PER_STREAM + 1)))
    stream = TurnStream(HttpMetrics(), stays_open=True)
    taken = [turns.add_to(stream, turn_id) for turn_id in turns.buffers]
    assert taken == [True] * MAX_TURNS_PER_STREAM + [False]
