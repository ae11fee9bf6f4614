"""HTTP/1.1 as uvicorn speaks it with httptools, with limits that neither of them has."""

from __future__ import annotations

import asyncio
import resource
from asyncio.events import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 20.0
"""In which the head of a request must have come, from the connection's opening or the head's first byte."""
STALL_TIMEOUT_S = 120.0
"""A client that takes nothing of an answer for so long is gone: what waits for it is kept in memory."""
MAX_CONNECTIONS = 10_000
_OTHER_FILES = 256
"""Open files that are no connections: the database, models, logs."""


class HttpProtocol(HttpToolsProtocol):
    """Hangs up on a client that keeps the server waiting, or sends headers, trailers or the like without an end.

    More than :data:`MAX_HEAD_BYTES` are taken only where they come in the same read as their end. Where there are more
    than ``max_connections``, the one that has been without a request for longest is closed, whoever it belongs to.
    """

    head_timeout_s = HEAD_TIMEOUT_S
    stall_timeout_s = STALL_TIMEOUT_S
    max_connections = MAX_CONNECTIONS

    _overhead = 0  # bytes that came since there was something of a body, or the end of a head or a request
    _head_timer: TimerHandle | None = None
    _stall_timer: TimerHandle | None = None
    _without_request: dict[HttpProtocol, None] = {}  # noqa: RUF012 - of the whole server, oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._without_request[self] = None
        self._expect_head()
        if len(self.connections) > self.max_connections:
            oldest = next(iter(self._without_request))
            del self._without_request[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._without_request.pop(self, None)
        self._stop_expecting()
        self._stop_stall_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()  # the next request begins
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.send_400_response("The request's head is too long.")
            else:
                self.transport.close()

    def on_headers_complete(self) -> None:
        self._overhead = 0
        self._without_request.pop(self, None)
        self._stop_expecting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        self._stop_expecting()  # the request was answered before all of it had come
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._overhead = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._without_request[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _stop_expecting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def protocol_for(max_connections: int) -> type[HttpProtocol]:
    """The protocol of a server that holds at most so many connections."""
    return type("BoundedHttpProtocol", (HttpProtocol,), {"max_connections": max_connections, "_without_request": {}})


def raise_open_file_limit() -> int:
    """Have the system let this process open as many files as it may; returns how many connections that leaves.

    Beyond its limit a process cannot even accept a connection to refuse it, and nobody new gets in.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    unlimited = resource.RLIM_INFINITY
    allowed = wanted if hard == unlimited else min(wanted, hard)
    if soft == unlimited or soft >= allowed:
        allowed = wanted if soft == unlimited else soft
    else:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (ValueError, OSError):  # a sandbox may forbid it
            allowed = soft
    return max(min(MAX_CONNECTIONS, allowed - _OTHER_FILES), allowed // 2)
