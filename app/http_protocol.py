"""HTTP/1.1 as uvicorn speaks it with httptools, with a limit that httptools does not have."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024


class HttpProtocol(HttpToolsProtocol):
    """Hangs up on a client that sends headers, trailers or the like without an end: they are kept in memory.

    More than :data:`MAX_HEAD_BYTES` are taken only where they come in the same read as their end.
    """

    _overhead = 0  # bytes that came since there was something of a body, or the end of a head or a request

    def data_received(self, data: bytes) -> None:
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.send_400_response("The request's head is too long.")
            else:
                self.transport.close()

    def on_headers_complete(self) -> None:
        self._overhead = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._overhead = 0
        super().on_message_complete()
