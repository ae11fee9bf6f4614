"""The end of the server itself: whoever is being answered hears the whole answer, and nobody is waited for for ever."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app import serving


class _Server(serving._Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # pytest keeps its own handlers


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
