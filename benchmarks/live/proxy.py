"""Sends requests as a reverse proxy does: over a pool of persistent connections, each for a client with an address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from benchmarks.live.browser import IDLE_SECONDS, TIMEOUT_SECONDS, ResponseError

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """A pool of connections to a server on this machine that trusts this address as a proxy."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[tuple[float, _Connection]] = []  # the last used one is the last

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Returns the body of the answer.

        Raises:
            ResponseError: the server answered with an error.
        """
        async with asyncio.timeout(TIMEOUT_SECONDS), self._connection() as (reader, writer):
            writer.write(request_bytes(self.port, method, path, body, headers))
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            said = await reader.readexactly(_content_length(head))
        status = int(head.split(maxsplit=2)[1])
        if status >= 400:
            raise ResponseError(status, said.decode(errors="replace"))
        return said

    async def send_json(self, method: str, path: str, data: Any, headers: Mapping[str, str] | None = None) -> Any:
        """Sends JSON, and returns that of the answer; None if it has no body. Raises as :meth:`request`."""
        named = {"Content-Type": "application/json"} | dict(headers or {})
        said = await self.request(method, path, json.dumps(data).encode(), named)
        return json.loads(said) if said else None

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[_Connection]:
        while self._idle:
            used, connection = self._idle.pop()
            if perf_counter() - used < IDLE_SECONDS:
                break
            connection[1].close()
        else:
            connection = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        try:
            yield connection
        except BaseException:
            connection[1].close()  # an answer may be left in it
            raise
        self._idle.append((perf_counter(), connection))


def request_bytes(port: int, method: str, path: str, body: bytes, headers: Mapping[str, str] | None) -> bytes:
    """A request of HTTP/1.1."""
    named = {"Host": f"127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"} | dict(headers or {})
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _content_length(head: str) -> int:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0
