"""Reverse proxy in front of several servers for tests: it streams, and can use sticky sessions."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

COOKIE = "desk_replica"


class Proxy:
    """Balances requests round-robin; with ``sticky`` it sends each to the server named by the browser's cookie.

    A server that accepts no connections is skipped, as with Caddy's ``lb_try_duration``.
    """

    def __init__(self, servers: Sequence[str], *, sticky: bool = False) -> None:
        self.servers = list(servers)
        self.sticky = sticky
        self.served: Counter[int] = Counter()  #: server index -> number of requests
        self.url = ""
        self._turns = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        """Runs the proxy in a thread of its own."""
        started = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        thread.start()
        started.wait()
        try:
            yield self
        finally:
            assert self._loop is not None
            assert self._ended is not None
            self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await self._ended.wait()
        server.close()  # open connections are cancelled with the loop

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One request per connection: the browser opens another.
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            number, there = await self._choose(headers.get("cookie", ""))
            if there is None:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                kept = [line for line in head if not line.lower().startswith("connection:")]
                there[1].write("\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1"))
                await self._carry(number, (reader, writer), there)
        writer.close()

    async def _choose(self, cookie: str) -> tuple[int, tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
        count = len(self.servers)
        named = SimpleCookie(cookie).get(COOKIE)
        first = int(named.value) if self.sticky and named is not None else next(self._turns) % count
        for number in [first, *(other for other in range(count) if other != first)]:
            parts = urlsplit(self.servers[number])
            with suppress(OSError):
                there = await asyncio.open_connection(parts.hostname, parts.port)
                self.served[number] += 1
                return number, there
        return first, None

    async def _carry(
        self,
        number: int,
        here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Copies bytes in both directions until either side disconnects."""
        up = asyncio.create_task(_pipe(here[0], there[1]))
        down = asyncio.create_task(self._answer(number, there[0], here[1]))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            # A client keeps its side open after sending everything, so the end of its side means it disconnected.
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            there[1].close()

    async def _answer(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        cookie = f"Set-Cookie: {COOKIE}={number}; Path=/; HttpOnly; SameSite=Lax\r\n" if self.sticky else ""
        writer.write(status + b"\r\n" + cookie.encode() + rest)
        await _pipe(reader, writer)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
