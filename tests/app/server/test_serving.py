"""The end of the server itself: whoever is being answered hears the whole answer, and nobody is waited for for ever."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app.server import serving
from app.server.http_protocol import MAX_HEAD_BYTES, HttpProtocol


class _Server(serving._Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # pytest keeps its own handlers


@pytest.mark.full
@pytest.mark.parametrize("ends", [True, False])
async def test_what_is_being_said_when_it_ends(ends: bool) -> None:
    """The whole of it, though the machine stands still for longer than anybody waits; or it is cut."""
    closing = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await closing.wait()
        if not ends:
            await asyncio.Event().wait()
        await asyncio.sleep(0.3)
        time.sleep(2.5)  # noqa: ASYNC251 - nothing runs in this time
        await asyncio.sleep(0.3)
        await send({"type": "http.response.body", "body": b" and ended"})

    async def wind_down() -> None:
        closing.set()

    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=serving._CLOSE_SECONDS)
    server = _Server(config, lambda: None, wind_down)
    listener = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    async with httpx.AsyncClient(timeout=30) as http, http.stream("GET", url) as answer:
        pieces = answer.aiter_bytes()
        said = await anext(pieces)
        server.should_exit = True
        if ends:
            said += b"".join([piece async for piece in pieces])
            assert said == b"begun and ended"
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                [piece async for piece in pieces]
    await running


@pytest.mark.parametrize(
    "begun", [b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"]
)
async def test_headers_and_trailers_without_an_end_are_not_kept(begun: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.Event().wait()

    config = uvicorn.Config(app, http=HttpProtocol, lifespan="off", log_config=None, timeout_graceful_shutdown=0)
    server = _Server(config, lambda: None, lambda: asyncio.sleep(0))
    listener = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
    writer.write(begun)
    sent = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(60):
            while not reader.at_eof() and sent < 100 * MAX_HEAD_BYTES:
                writer.write(b"x-name: " + 1000 * b"v" + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
                sent += 1000
    assert sent < 100 * MAX_HEAD_BYTES
    assert not server.server_state.connections
    writer.close()
    server.should_exit = True
    await running


@asynccontextmanager
async def bounded_server(**limits: object) -> AsyncIterator[tuple[str, int]]:
    """A server whose answer to everything is 200 pieces of 64 KiB; its protocol has these limits."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200 if scope["path"] == "/long" else 1):
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    protocol = type("Limited", (HttpProtocol,), {**limits, "_without_request": {}})
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, timeout_graceful_shutdown=0)
    server = _Server(config, lambda: None, lambda: asyncio.sleep(0))
    listener = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[:2]
    finally:
        server.should_exit = True
        await running


async def hung_up(reader: asyncio.StreamReader) -> bool:
    """The server has closed the connection; what it said before is thrown away."""
    try:
        async with asyncio.timeout(30):
            while await reader.read(65536):
                pass
    except ConnectionError:
        pass
    return True


@pytest.mark.full
@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HT"])
async def test_a_head_that_does_not_come_ends_the_connection(begun: bytes) -> None:
    async with bounded_server(head_timeout_s=0.3) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(begun)
        assert await hung_up(reader)
        writer.close()


@pytest.mark.slow
async def test_a_client_that_takes_nothing_of_its_answer_is_gone() -> None:
    async with bounded_server(stall_timeout_s=0.3) as address:
        reader, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"GET /long HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await asyncio.sleep(2)
        received = 0
        with suppress(ConnectionError):
            async with asyncio.timeout(30):
                while piece := await reader.read(2**20):
                    received += len(piece)
        assert received < 200 * 65536
        writer.close()


async def test_beyond_its_connections_a_server_closes_those_without_a_request() -> None:
    async with bounded_server(max_connections=5) as address:
        idle = [await asyncio.open_connection(*address) for _ in range(20)]
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}", timeout=30) as http:
            assert (await http.get("/")).status_code == 200
        assert all([await hung_up(reader) for reader, _ in idle[:15]])
        for _, writer in idle:
            writer.close()
