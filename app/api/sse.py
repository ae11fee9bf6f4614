"""Server-sent events: a streaming response that pings, ends at shutdown, and always closes its source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

import orjson
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.concurrency.timeouts import wait_with_timeout

#: Interval of keep-alive comments on a silent stream.
PING_SECONDS = 15.0
#: Time for the last events of a stream once the server shuts down; then the stream is cut off.
SHUTDOWN_GRACE_SECONDS = 0.5


def sse_event(data: Mapping[str, Any] | str, *, event: str | None = None, id: str | None = None) -> bytes:
    """Encodes one event; a mapping is encoded as JSON."""
    if isinstance(data, str):
        return format_sse_event(data_str=data, event=event, id=id)
    # Called for every token. orjson's output has no line breaks, so the data needs no splitting into lines.
    name = f"event: {event}\n" if event is not None else ""
    number = f"id: {id}\n" if id is not None else ""
    return b"%bdata: %b\n%b\n" % (name.encode(), orjson.dumps(data), number.encode())


class EventStream(StreamingResponse):
    """Streams events until they end, the client disconnects, or shortly after ``closing`` is set.

    In each case the source is closed before the response ends, so that what it holds (an engine request, a turn's
    reader) is released at once.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        closing: asyncio.Event,
        final_event: bytes | Callable[[], bytes] = b"",
        source: AsyncIterator[object] | None = None,
    ) -> None:
        """Args:
        closing: ends the stream shortly after it is set.
        final_event: the last event of a stream that ``closing`` cuts off.
        source: the iterator that ``events`` reads, if it has been started already: closing ``events`` before its
            first iteration would not close it.
        """
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events
        self._closing = closing
        self._final_event = final_event
        self._source = source
        self._sent = 0
        self._sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as in ASGI
        # Events run in a task of their own, which only they wake. This one handles pings, disconnects and shutdown.
        streaming = asyncio.create_task(self._stream(send))
        disconnected = asyncio.create_task(self.listen_for_disconnect(receive))
        closed = asyncio.create_task(self._closing.wait())
        try:
            if await self._ping_until_end(streaming, disconnected, closed, send):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for task in (streaming, disconnected, closed):
                task.cancel()
            await asyncio.gather(streaming, disconnected, closed, return_exceptions=True)
            await close(self._events)
            if self._source is not None:
                await close(self._source)

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            self._sending = True
            await send({"type": "http.response.body", "body": event, "more_body": True})
            self._sending = False
            self._sent += 1

    async def _ping_until_end(
        self, streaming: asyncio.Task[None], disconnected: asyncio.Task[None], closed: asyncio.Task[Any], send: Send
    ) -> bool:
        """Sends pings until the stream ends; returns whether the client is still connected."""
        while not closed.done():
            sent = self._sent
            await asyncio.wait(
                {streaming, disconnected, closed}, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if streaming.done():
                streaming.result()
                return True
            if disconnected.done():
                return False
            if not closed.done() and self._sent == sent and not self._sending:
                await send({"type": "http.response.body", "body": KEEPALIVE_COMMENT, "more_body": True})
        # At shutdown, the last events of a reply are often about to be sent.
        await wait_with_timeout(SHUTDOWN_GRACE_SECONDS, [streaming])
        if streaming.done():
            streaming.result()
            return True
        streaming.cancel()
        await asyncio.gather(streaming, return_exceptions=True)
        final_event = self._final_event() if callable(self._final_event) else self._final_event
        if final_event:
            await send({"type": "http.response.body", "body": final_event, "more_body": True})
        return True


async def close(events: AsyncIterator[object]) -> None:
    """Closes an iterator if it is a generator; dropping it would leave that to the garbage collector."""
    if isinstance(events, AsyncGenerator):
        await events.aclose()
