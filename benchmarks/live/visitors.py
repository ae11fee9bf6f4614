"""Simulates visitors of a website by the widget's protocol: a session, a stream of events, messages."""

from __future__ import annotations

import asyncio
import json
from time import perf_counter
from uuid import uuid4

from benchmarks.live.browser import ResponseError
from benchmarks.live.proxy import Proxy, request_bytes
from engine.remote.sse import EventParser

ANSWER_TIMEOUT_SECONDS = 60.0
"""A message without a word of the bot within this time has failed."""


class Visitor:
    """A visitor with an address and an open stream; made by :meth:`arrive`."""

    def __init__(self, proxy: Proxy, address: str) -> None:
        self._proxy = proxy
        self._headers = {"X-Forwarded-For": address}
        self._stream: _EventStream | None = None
        self._shown: set[str] = set()  # ids of messages
        self._first_word: asyncio.Future[float] | None = None
        self.with_people = False  #: whether the case has left the bot
        self.num_messages = 0

    async def arrive(self, inbox: str) -> float:
        """Opens the widget of the inbox with this public token, and the stream. Returns the session's seconds.

        Raises:
            ResponseError: the server refuses the session, or the stream.
        """
        began = perf_counter()
        wanted = {"language": "en", "time_zone": "Europe/Vienna"}
        path = f"/api/widget/{inbox}/sessions"
        session = await self._proxy.send_json("POST", path, wanted, self._headers)
        seconds = perf_counter() - began
        self._headers["Authorization"] = f"Bearer {session['token']}"
        loop = asyncio.get_running_loop()
        _, self._stream = await loop.create_connection(lambda: _EventStream(self), "127.0.0.1", self._proxy.port)
        headers = self._headers | {"Accept": "text/event-stream"}
        self._stream.begin(request_bytes(self._proxy.port, "GET", "/api/widget/events", b"", headers))
        await self._stream.accepted
        return seconds

    def leave(self) -> None:
        """Closes the page."""
        if self._stream is not None:
            self._stream.abort()

    @property
    def is_connected(self) -> bool:
        return self._stream is not None and self._stream.is_open

    async def write(self, text: str) -> tuple[float, float | None]:
        """Sends a message. Returns the seconds to its acknowledgement, and to the first word of the bot, or the
        sentence of a hand-off, in the stream: None if people have the case, who answer in their own time.

        Raises:
            ResponseError: the server refuses it.
            TimeoutError: no word has come.
        """
        self._first_word = asyncio.get_running_loop().create_future()
        self.num_messages += 1
        sent = perf_counter()
        wanted = {"text": text, "client_id": uuid4().hex}
        stored = await self._proxy.send_json("POST", "/api/widget/messages", wanted, self._headers)
        acknowledged = perf_counter() - sent
        if stored["case"]["status"] != "bot":
            return acknowledged, None
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            return acknowledged, await self._first_word - sent

    def received(self, name: str, data: str) -> None:
        """Takes an event of the stream."""
        if name == "case":
            self.with_people = json.loads(data)["status"] != "bot"
        elif name == "message":
            message = json.loads(data)
            is_new = message["id"] not in self._shown
            self._shown.add(message["id"])
            awaited = self._first_word
            is_answer = is_new and message["author"]["kind"] != "contact"
            if is_answer and awaited is not None and not awaited.done():
                awaited.set_result(perf_counter())


class _EventStream(asyncio.Protocol):
    """Receives the visitor's events. A chunk holds whole events, so the parser passes over the chunks' sizes."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._parser = EventParser()
        self._head: bytes | None = b""
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_open = True

    def begin(self, request: bytes) -> None:
        self._transport.write(request)

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = None
            status = int(head.split(maxsplit=2)[1])
            if status != 200:
                self.accepted.set_exception(ResponseError(status, data.decode(errors="replace")))
                self.abort()
                return
            self.accepted.set_result(None)
        for event in self._parser.feed(data):
            self._visitor.received(event.name, event.data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the received bytes show how it ended
        self.is_open = False
        if not self.accepted.done():
            self.accepted.set_exception(ConnectionResetError("the stream ended before it began"))
