"""The whole application under a real uvicorn, in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from app.main import create_app
from app.settings import AppSettings
from engine import ChatEngine, EngineState
from tests.support.fake_engine import FakeEngine


@dataclass(frozen=True)
class Live:
    """A server that answers at ``url``, the engine behind it, and a client for it."""

    url: str
    app: FastAPI
    engine: FakeEngine
    http: httpx.AsyncClient


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # pytest keeps its own handlers


@asynccontextmanager
async def live_server(data_dir: Path, **settings: Any) -> AsyncIterator[Live]:
    """``settings`` are fields of ``AppSettings``."""
    engine = FakeEngine()
    async with serving(data_dir, engine, **settings) as (url, app, http):
        yield Live(url, app, engine, http)


@asynccontextmanager
async def serving(
    data_dir: Path, engine: ChatEngine, **settings: Any
) -> AsyncIterator[tuple[str, FastAPI, httpx.AsyncClient]]:
    """The same with any engine, started and stopped with it if need be: its address, the application, a client."""
    app = create_app(AppSettings(data_dir=data_dir, _env_file=None, **{"auto_titles": False} | settings), engine)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = _Uvicorn(config)
    async with app.router.lifespan_context(app):
        running = asyncio.create_task(server.serve(sockets=[listener]))
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            yield url, app, http
        server.should_exit = True
        await running


def forget(engine: FakeEngine) -> None:
    """Make an engine that is shared among tests as good as new."""
    assert engine.running == 0, "the test before left a request running"
    engine.scripts.clear()
    engine.calls.clear()
    engine.started.clear()
    engine.refuse = None
    engine.ready = True
    engine.state = EngineState.READY
    engine.name("fake")
    engine.life.clear()
    engine.life_error = None
    engine.deadlines.clear()
    engine.aborted = 0
