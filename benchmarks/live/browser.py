"""Minimal client that imitates one user's browser; it is cheap because it shares the machine with the server.

Requests use one persistent connection. Replies arrive over another one, like the page's ``EventSource``: it is opened
for the first reply and stays open for the next ones. Bytes are only collected as they arrive, and parsed when a reply
has ended.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from engine.remote.sse import EventParser

TIMEOUT_SECONDS = 120.0
IDLE_SECONDS = 3.0
"""Idle time after which a connection is not reused: the server closes a connection that was idle for 5 seconds."""


_END_EVENTS = (b"event: end\n", b"event: gone\n")
_LONGEST_EVENT_LINE = b"event: progress\n"


class ResponseError(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said[:300]}")
        self.status = status


class Browser:
    """A user's browser; it has a session cookie after :meth:`use_link`.

    Args:
        port: port of a server on this machine.
        address: the client address that a proxy would report.
    """

    def __init__(self, port: int, address: str) -> None:
        self._port = port
        self._headers = {"Host": f"127.0.0.1:{port}", "X-Forwarded-For": address, "Sec-Fetch-Site": "same-origin"}
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0
        self._stream: EventStream | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """What each of its requests has, the session's cookie included."""
        return dict(self._headers)

    async def use_link(self, token: str, name: str, password: str) -> None:
        """Creates an account with an invitation link's token."""
        await self.post("/api/links/use", {"token": token, "name": name, "password": password})

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> bytes:
        return await self._ask("GET", path, b"", headers)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        said = await self._ask("POST", path, json.dumps(body).encode())
        return json.loads(said) if said else None

    async def delete(self, path: str) -> None:
        await self._ask("DELETE", path, b"")

    def expect(self) -> StreamedReply | None:
        """Prepares for the reply to the next message if the event stream is open (see :attr:`stream_id`)."""
        return self._stream.expect() if self._stream is not None and self._stream.is_open else None

    @property
    def stream_id(self) -> str | None:
        """Id of the open event stream, or None."""
        return self._stream.stream_id if self._stream is not None and self._stream.is_open else None

    async def follow(self, turn_id: str) -> StreamedReply:
        """Reopens the event stream, for a reply that is not in the present one."""
        self._close_stream()
        loop = asyncio.get_running_loop()
        stream_id = secrets.token_hex(8)
        path = f"/api/events?turn={turn_id}:0&stream_id={stream_id}"
        _, self._stream = await loop.create_connection(lambda: EventStream(stream_id), "127.0.0.1", self._port)
        return self._stream.begin(self._request("GET", path, b"", {"Accept": "text/event-stream"}))

    def close_page(self) -> None:
        """Closes the page, possibly in the middle of a reply."""
        self._close_stream()
        self.close()

    def close(self) -> None:
        """Closes the connection for requests; the next request opens another."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.abort()
            self._stream = None

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in (self._headers | dict(headers or {})).items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        request = self._request(method, path, body, headers)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            if perf_counter() - self._used > IDLE_SECONDS:
                self.close()
            is_reused = self._connection is not None
            try:
                code, said = await self._exchange(request)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                has_begun = isinstance(error, asyncio.IncompleteReadError) and error.partial
                if not is_reused or has_begun:
                    raise
                self.close()  # the server ended an idle connection just now; a real browser opens another one, too
                code, said = await self._exchange(request)
            self._used = perf_counter()
        if code >= 400:
            raise ResponseError(code, said.decode(errors="replace"))
        return said

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        """Sends a request; returns the status and the body of its response."""
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        reader, writer = self._connection
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = head.split("\r\n")
        length = 0
        for line in lines:
            name, _, value = line.partition(": ")
            if name.lower() == "content-length":
                length = int(value)
            elif name.lower() == "set-cookie":
                self._headers["Cookie"] = value.partition(";")[0]
        return int(status.split()[1]), await reader.readexactly(length)


class StreamedReply:
    """The bytes received of one reply."""

    def __init__(self) -> None:
        self.first_text: float | None = None  #: arrival of the first text, on ``perf_counter``
        self._said = bytearray()
        self._ending = False  # the last event has started
        self._ended = asyncio.get_running_loop().create_future()

    def feed(self, data: bytes) -> bool:
        """Adds received bytes. Returns whether the reply is complete."""
        unseen = max(0, len(self._said) - len(_LONGEST_EVENT_LINE))
        self._said += data
        if self.first_text is None and self._said.find(b"event: text\n", unseen) >= 0:
            self.first_text = perf_counter()
        refused = len(self._said) > 12 and self._said.startswith(b"HTTP/") and self._said[8:13] != b" 200 "
        self._ending = self._ending or any(self._said.find(name, unseen) >= 0 for name in _END_EVENTS)
        over = refused or (self._ending and self._said.endswith(b"\n\n\r\n"))
        if over:
            self.feed_eof()
        return over

    def feed_eof(self) -> None:
        """Marks the reply as ended."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def end(self) -> dict[str, Any]:
        """Waits for the end; returns the data of the reply's last event, with the number of ``text_events``.

        Raises:
            ResponseError: the stream was refused, or ended early.
        """
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._ended
        return last_event(bytes(self._said))


class EventStream(asyncio.Protocol):
    """Receives one reply after the other over a persistent connection."""

    def __init__(self, stream_id: str) -> None:
        self.stream_id = stream_id
        self.is_open = True
        self._reply: StreamedReply | None = None

    def begin(self, request: bytes) -> StreamedReply:
        """Requests the stream; returns the reply that it is opened for."""
        self._transport.write(request)
        return self.expect()

    def expect(self) -> StreamedReply:
        """Starts the next reply."""
        self._reply = StreamedReply()
        return self._reply

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._reply is not None and self._reply.feed(data):
            self._reply = None

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the received bytes show how it ended
        self.is_open = False
        if self._reply is not None:
            self._reply.feed_eof()


def last_event(said: bytes) -> dict[str, Any]:
    """Parses a reply's last event from the raw bytes (chunk sizes, and the response head if it opened the stream).

    The parser skips the sizes, lines of their own, as unknown fields: a chunk holds whole events.

    Raises:
        ResponseError: the bytes are no event stream, or contain no last event.
    """
    if said.startswith(b"HTTP/"):
        head, _, said = said.partition(b"\r\n\r\n")
        status = int(head.split(maxsplit=2)[1])
        if status != 200:
            raise ResponseError(status, said.decode(errors="replace"))
    events = list(EventParser().feed(said))
    for event in reversed(events):
        if event.name in ("end", "gone"):
            return {**json.loads(event.data), "text_events": sum(event.name == "text" for event in events)}
    raise ResponseError(200, "the stream ended before the reply did")
