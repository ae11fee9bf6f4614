"""A body that is too large is answered before its connection closes, and none of it is kept."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from app.auth.guard import Guard
from app.auth.identity import LocalUser
from app.auth.refusals import RequestRefused
from app.auth.request_body import limit_upload, read_body
from app.errors import TooLarge
from app.server.http_protocol import HttpProtocol

LIMIT = 1000


def scope(**headers: str) -> Scope:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": "/v1/completions", "headers": named}


class Body:
    """A ``receive`` that yields pieces of a body and counts what was read."""

    def __init__(self, *sizes: int) -> None:
        self.left = list(sizes)

    async def __call__(self) -> Message:
        size = self.left.pop(0)
        return {"type": "http.request", "body": b"x" * size, "more_body": bool(self.left)}


@pytest.mark.parametrize("headers", [{}, {"content_length": "1500"}], ids=["chunked", "declared"])
async def test_a_body_that_is_too_large_is_read_to_its_end_first(headers: dict[str, str]) -> None:
    body = Body(500, 500, 500)
    with pytest.raises(RequestRefused, match="larger than") as refused:
        await read_body(scope(**headers), body, LIMIT, 10)
    assert body.left == []
    assert (refused.value.status, refused.value.headers) == (413, {"Connection": "close"})


async def test_a_body_without_end_is_not() -> None:
    body = Body(*[500] * 100)
    with pytest.raises(RequestRefused):
        await read_body(scope(), body, LIMIT, 10)
    assert len(body.left) == 80


async def test_a_client_that_asks_first_is_not_told_to_send() -> None:
    body = Body(1500)
    with pytest.raises(RequestRefused):
        await read_body(scope(content_length="1500", expect="100-continue"), body, LIMIT, 10)
    assert body.left == [1500]


async def test_an_upload_that_is_too_large_is_read_to_its_end_first() -> None:
    body = Body(500, 500, 500)
    receive = limit_upload(scope(), body, LIMIT, 10)
    assert [len((await receive())["body"]) for _ in range(2)] == [500, 500]
    with pytest.raises(TooLarge):
        await receive()
    assert body.left == []


@pytest.mark.parametrize(
    ("size", "expect"), [("1500", "100-continue"), ("15000", "")], ids=["asks-first", "far-too-large"]
)
async def test_an_upload_is_refused_before_it_is_sent(size: str, expect: str) -> None:
    body = Body(1500)
    with pytest.raises(TooLarge):
        await limit_upload(scope(content_length=size, expect=expect), body, LIMIT, 10)()
    assert body.left == [1500]


async def test_an_upload_that_is_too_large_and_stalls_is_refused() -> None:
    pieces = [{"type": "http.request", "body": b"x", "more_body": True}]

    async def stalls() -> Message:
        return pieces.pop() if pieces else await asyncio.get_running_loop().create_future()

    with pytest.raises(TooLarge):
        async with asyncio.timeout(10):
            await limit_upload(scope(content_length="1500"), stalls, LIMIT, 0.05)()


@asynccontextmanager
async def guarded_server() -> AsyncIterator[str]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the body reached the application")

    guard = Guard(app, authenticator=LocalUser("me"))
    server = uvicorn.Server(uvicorn.Config(guard, http=HttpProtocol, lifespan="off", log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server._serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


async def test_a_client_that_sends_ten_megabytes_reads_the_answer() -> None:
    async with guarded_server() as url, httpx.AsyncClient(timeout=60) as http:
        for content in (b"x" * 10_000_000, pieces(10)):
            answer = await http.post(
                f"{url}/v1/completions", content=content, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == 413
            assert answer.headers["connection"] == "close"
            assert answer.json()["error"]["message"] == "The request is larger than 4 MiB. Send less in one request."


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 1_000_000
