"""Server-sent events: one response class that pings, ends with the server, and always cleans up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.patience import wait_at_most

PING_SECONDS = 15.0
#: How long a stream may wait for its last events once the server closes.
LAST_WORDS_SECONDS = 0.5


def sse_event(data: Mapping[str, Any] | str, *, event: str | None = None, id: str | None = None) -> bytes:
    """One event on the wire; a mapping is sent as JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return format_sse_event(data_str=text, event=event, id=id)


class EventStream(StreamingResponse):
    """Streams events until they end, the client leaves, or soon after ``closing`` is set.

    In each case what feeds it is closed before the response ends, so whatever that holds (an engine
    request, a place among a turn's readers) is given back at once.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        closing: asyncio.Event,
        farewell: bytes = b"",
        source: AsyncIterator[object] | None = None,
    ) -> None:
        """Args:
        closing: ends the stream soon after it is set.
        farewell: the last event of a stream that ``closing`` cut short.
        source: what ``events`` reads when it was begun before them: closing an ``events`` that never
            started would not reach it.
        """
        self._body = _with_pings(events, closing, farewell)
        self._source = source
        super().__init__(self._body, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._body.aclose()
            if self._source is not None:
                await close(self._source)


async def _with_pings(events: AsyncIterator[bytes], closing: asyncio.Event, farewell: bytes) -> AsyncGenerator[bytes]:
    async def following() -> bytes | None:
        return await anext(events, None)

    closed = asyncio.create_task(closing.wait())
    pending = asyncio.create_task(following())
    patience = LAST_WORDS_SECONDS  # with a stream that is to close
    try:
        while True:
            if closed.done():
                # The last events of a reply are often on their way just when the server closes.
                patience = await wait_at_most(patience, [pending])
            else:
                await asyncio.wait({pending, closed}, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if pending.done():
                event = pending.result()
                if event is None:
                    return
                yield event
                if patience <= 0:
                    break
                pending = asyncio.create_task(following())
            elif patience <= 0:
                break
            elif not closed.done():
                yield KEEPALIVE_COMMENT
        if farewell:
            yield farewell
    finally:
        for task in (pending, closed):
            task.cancel()
        await asyncio.gather(pending, closed, return_exceptions=True)
        await close(events)


async def close(events: AsyncIterator[object]) -> None:
    """Close an iterator that may be a generator: dropping it would leave that to the garbage collector."""
    if isinstance(events, AsyncGenerator):
        await events.aclose()
