"""uvicorn's httptools protocol (HTTP/1.1), plus the limits that neither of them has: time, head size, connections."""

from __future__ import annotations

import asyncio
import resource
from asyncio.events import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of a request's head. A longer one is answered with 400, or its connection is closed."""
HEAD_TIMEOUT_S = 20.0
"""Seconds for a request's head to arrive, from the connection's opening or the head's first byte; then it is closed."""
STALL_TIMEOUT_S = 120.0
"""Seconds in which a client must read some of its response: the connection is aborted after that, since the unsent
data is kept in memory."""
MAX_CONNECTIONS = 10_000
"""Maximum open connections of the server. Above it, the one without a request for longest is aborted."""
_OTHER_FILES = 256
"""Reserve of open files that are not connections: the database, models, logs."""


class HttpProtocol(HttpToolsProtocol):
    """Closes connections that keep the server waiting, or that send headers, trailers or chunk extensions without end.

    A head above :data:`MAX_HEAD_BYTES` is accepted only if it arrives in the same read as its end. Above
    ``max_connections``, the connection without a request for longest is aborted, whichever client it belongs to.
    """

    head_timeout_s = HEAD_TIMEOUT_S
    stall_timeout_s = STALL_TIMEOUT_S
    max_connections = MAX_CONNECTIONS

    _overhead = 0  # bytes received since the last piece of a body, or the last end of a head or of a request
    _head_timer: TimerHandle | None = None
    _stall_timer: TimerHandle | None = None
    _without_request: dict[HttpProtocol, None] = {}  # noqa: RUF012 - shared by the whole server, oldest first

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
        self._stop_expecting()  # the request was answered before its body had arrived completely
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
    """Returns a protocol class for one server, with at most ``max_connections`` open connections."""
    return type("BoundedHttpProtocol", (HttpProtocol,), {"max_connections": max_connections, "_without_request": {}})


def raise_open_file_limit() -> int:
    """Raises the limit of open files as far as the system allows and returns how many connections that leaves.

    Above its limit, a process cannot even accept a connection to refuse it, and no new client gets in.
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
