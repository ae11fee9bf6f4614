"""One person's browser, as lean as can be: it shares the machine with the server that is measured.

Requests go over one connection that stays open. Each reply's events come over a connection of their own, as a page's
``EventSource`` has it; its bytes are only gathered while they come and looked into when the stream has ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from time import perf_counter
from typing import Any

PATIENCE_SECONDS = 120.0
IDLE_SECONDS = 3.0
"""After which a connection is not used again: the server closes one that was idle for five, perhaps just now."""


class RefusedError(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said[:300]}")
        self.status = status


class Browser:
    """Knows its session's cookie once it has used a link.

    Args:
        port: of a server on this machine.
        address: where it comes from, as a proxy would say.
    """

    def __init__(self, port: int, address: str) -> None:
        self._port = port
        self._headers = {"Host": f"127.0.0.1:{port}", "X-Forwarded-For": address, "Sec-Fetch-Site": "same-origin"}
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def use_link(self, token: str, name: str, password: str) -> None:
        """Make the account that a link is for."""
        await self.post("/api/links/use", {"token": token, "name": name, "password": password})

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> bytes:
        return await self._ask("GET", path, b"", headers)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        said = await self._ask("POST", path, json.dumps(body).encode())
        return json.loads(said) if said else None

    async def delete(self, path: str) -> None:
        await self._ask("DELETE", path, b"")

    async def events(self, turn_id: str) -> Events:
        """Begin to follow a reply."""
        path = f"/api/events?turn={turn_id}:0"
        loop = asyncio.get_running_loop()
        _, events = await loop.create_connection(lambda: Events(), "127.0.0.1", self._port)
        events.ask(self._request("GET", path, b"", {"Accept": "text/event-stream", "Connection": "close"}))
        return events

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in (self._headers | dict(headers or {})).items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            if perf_counter() - self._used > IDLE_SECONDS:
                self.close()
            if self._connection is None:
                self._connection = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
            reader, writer = self._connection
            writer.write(self._request(method, path, body, headers))
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, *lines = head.split("\r\n")
            length = 0
            for line in lines:
                name, _, value = line.partition(": ")
                if name.lower() == "content-length":
                    length = int(value)
                elif name.lower() == "set-cookie":
                    self._headers["Cookie"] = value.partition(";")[0]
            said = await reader.readexactly(length)
            self._used = perf_counter()
        code = int(status.split()[1])
        if code >= 400:
            raise RefusedError(code, said.decode(errors="replace"))
        return said


class Events(asyncio.Protocol):
    """One reply's events, as they come."""

    def __init__(self) -> None:
        self.first_text: float | None = None  #: when it came, on ``perf_counter``
        self._pieces: list[bytes] = []
        self._ended = asyncio.get_running_loop().create_future()

    def ask(self, request: bytes) -> None:
        self._transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if self.first_text is None and b"event: text" in data:
            self.first_text = perf_counter()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - what came says how it ended
        if not self._ended.done():
            self._ended.set_result(None)

    def leave(self) -> None:
        """Close the connection in the middle of it."""
        self._transport.abort()

    async def end(self) -> dict[str, Any]:
        """Wait for the stream's end; returns what the reply's last event says, with the number of ``text_events``.

        Raises:
            RefusedError: the stream was refused, or broke off.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._ended
        finally:
            self._transport.abort()
        return last_event(b"".join(self._pieces))


def last_event(answer: bytes) -> dict[str, Any]:
    """Of a whole answer, head and chunks and all: the data of the event that ended the reply.

    Raises:
        RefusedError: it is no stream of events, or it has no such event.
    """
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(maxsplit=2)
    if len(status) < 2 or status[1] != b"200":
        raise RefusedError(int(status[1]) if len(status) > 1 else 0, body.decode(errors="replace"))
    for name in (b"end", b"gone"):
        _, found, rest = body.rpartition(b"event: " + name + b"\n")
        if found:
            line = next(line for line in rest.split(b"\n") if line.startswith(b"data: "))
            return {**json.loads(line[6:]), "text_events": body.count(b"event: text\n")}
    raise RefusedError(200, "the stream ended before the reply did")
