"""The whole application under a real uvicorn, in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio
import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from app.main import create_app
from app.settings import AppSettings
from app.ui import mount
from engine import ChatEngine, EngineState
from testing.databases import create_migrated_file
from testing.fake_engine import FakeEngine


@dataclass(frozen=True)
class RunningApp:
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
async def live_server(data_dir: Path, *, gradio: bool = True, **settings: Any) -> AsyncIterator[RunningApp]:
    """``settings`` are fields of ``AppSettings``; the rest is as for :func:`serve_app`."""
    engine = FakeEngine()
    async with serve_app(data_dir, engine, gradio=gradio, **settings) as (url, app, http):
        yield RunningApp(url, app, engine, http)


@asynccontextmanager
async def serve_app(
    data_dir: Path, engine: ChatEngine, *, gradio: bool = True, **settings: Any
) -> AsyncIterator[tuple[str, FastAPI, httpx.AsyncClient]]:
    """The same with any engine, started and stopped with it if need be: its address, the application, a client.

    Args:
        gradio: whether there is the chat's page, which takes longer to build than all the rest.
    """
    chosen = AppSettings(data_dir=data_dir, _env_file=None, **{"auto_titles": False} | settings)
    if chosen.database_url is None and not (data_dir / "deskmate.db").exists():
        create_migrated_file(data_dir / "deskmate.db")
    with nullcontext() if gradio else _no_chat_page():
        app = create_app(chosen, engine)
    async with app.router.lifespan_context(app), serve_asgi(app) as (url, http):
        yield url, app, http


@asynccontextmanager
async def serve_asgi(app: FastAPI) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """Serves ``app``, whose lifespan the caller enters if need be: its address, and a client."""
    listener = socket.create_server(("127.0.0.1", 0))
    # asyncio sets it only for sockets that name their protocol; without, each answer waits 40 ms for the client's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = _Uvicorn(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield url, http
    server.should_exit = True
    await running


@cache
def _empty_page() -> gradio.Blocks:
    """One for all servers: it has no events, so nothing of theirs is kept in it, and Gradio takes long to make it."""
    return gradio.Blocks(analytics_enabled=False)


@contextmanager
def _no_chat_page() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mount, "_queued_page", lambda _services: _empty_page())
        patched.setattr(gradio, "mount_gradio_app", lambda app, *_, **__: app)
        yield


def reset_engine(engine: FakeEngine) -> None:
    """Make an engine that is shared among tests as good as new."""
    assert engine.running == 0, "the test before left a request running"
    engine.scripts.clear()
    engine.calls.clear()
    engine.options.clear()
    engine.tokenize_options.clear()
    engine.started.clear()
    engine.refuse = None
    engine.ready = True
    engine.state = EngineState.READY
    engine.name("fake")
    engine.serve_as()
    engine.list_adapters()
    engine.adapters.clear()
    engine.lifecycle_calls.clear()
    engine.lifecycle_error = None
    engine.deadlines.clear()
    engine.aborted = 0
