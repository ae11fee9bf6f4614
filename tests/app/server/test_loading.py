"""The page is served while the model loads: what it says meanwhile, and how a start ends that does not succeed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import pytest

from app.concurrency import cpu_affinity
from app.server import serving
from app.settings import AppSettings
from engine import EngineState, EngineStoppedError, Health, ModelLoadError
from testing.databases import create_migrated_file
from testing.fake_engine import FakeEngine
from testing.waiting import eventually

REASON = "The model is still being loaded. Try again in a moment."


class SlowEngine(FakeEngine):
    """Loads for as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.num_stops = 0
        self.refuse = EngineStoppedError(REASON)

    def start_in_background(self) -> asyncio.Task[None]:
        self.state = EngineState.STARTING
        return asyncio.create_task(self._load())

    async def _load(self) -> None:
        await self.loaded
        self.state, self.refuse = EngineState.READY, None

    def health(self) -> Health:
        return Health(ready=self.refuse is None, error=None if self.refuse is None else str(self.refuse))

    async def stop(self) -> None:
        self.num_stops += 1

    async def __aenter__(self) -> SlowEngine:
        raise AssertionError("the page would wait for the model")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@dataclass
class Running:
    """A server whose model is still loading."""

    engine: SlowEngine
    task: asyncio.Task[None]
    http: httpx.AsyncClient
    ready: list[str | None] = field(default_factory=list)  #: calls of ``on_ready``


@asynccontextmanager
async def _loading(data_dir: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Running]:
    monkeypatch.setattr(serving, "give_way_to_engine", lambda: None)
    monkeypatch.setattr(serving, "exempt_imported_objects", lambda: None)
    monkeypatch.setattr(serving, "exempt_loaded_objects", lambda: None)
    monkeypatch.setattr("app.main.mount_ui", lambda app, _services: app)
    create_migrated_file(data_dir / "deskmate.db")
    listener = serving.bind("127.0.0.1", 0)
    engine, ready, loading = SlowEngine(), list[str | None](), asyncio.Event()
    chosen = AppSettings(data_dir=data_dir, _env_file=None, auto_titles=False, **settings)
    task = asyncio.create_task(serving.serve(chosen, engine, listener, ready.append, loading.set))
    waiting = asyncio.create_task(loading.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    async with httpx.AsyncClient(base_url=serving.address_of(listener), timeout=30) as http:
        yield Running(engine, task, http, ready)
    if not task.done():
        os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait({task, waiting}, return_when=asyncio.ALL_COMPLETED)
    listener.close()


async def test_the_server_answers_before_its_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _loading(tmp_path, monkeypatch) as server:
        http = server.http
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ready")).status_code == 503
        assert (await http.get("/api/engine")).json()["state"] == "starting"
        assert (await http.get("/api/conversations")).json()["items"] == []
        assert (await http.get("/metrics")).status_code == 200
        assert server.ready == []
        server.engine.loaded.set_result(None)
        await eventually(lambda: bool(server.ready))
        assert server.ready == [None]
        assert (await http.get("/ready")).status_code == 200
        started = await http.post("/api/turns", json={"text": "Hello"})
        assert started.status_code < 300, started.text
    await server.task
    assert server.engine.num_stops == 1


async def test_the_threads_that_began_before_the_model_was_loaded_leave_its_cpu_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = set[str]()
    monkeypatch.setattr(cpu_affinity, "_HAS_TWO_CPUS", True)
    monkeypatch.setattr(cpu_affinity, "_is_pinned", False)
    monkeypatch.setattr(cpu_affinity, "_pin", lambda thread: pinned.add(thread.name))
    monkeypatch.setattr(cpu_affinity, "_lower_priority", lambda _: None)  # of the tests, for good
    async with _loading(tmp_path, monkeypatch) as server:
        monkeypatch.setattr(serving, "give_way_to_engine", cpu_affinity.give_way_to_engine)
        assert (await server.http.get("/api/conversations")).json()["items"] == []
        assert pinned == set()
        server.engine.loaded.set_result(None)
        await eventually(lambda: bool(server.ready))
        assert {"MainThread", "database-write_0", "database-read_0", "to-thread_0"} <= pinned
    await server.task


async def test_a_message_that_comes_before_the_model_is_refused_and_can_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _loading(tmp_path, monkeypatch) as server:
        for path, body in (
            ("/api/turns", {"text": "Hello", "request_id": "once"}),
            ("/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "Hello"}]}),
        ):
            refused = await server.http.post(path, json=body)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert REASON in refused.text
        server.engine.loaded.set_result(None)
        await eventually(lambda: bool(server.ready))
        again = await server.http.post("/api/turns", json={"text": "Hello", "request_id": "once"})
        assert again.status_code < 300, again.text
    await server.task


async def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _loading(tmp_path, monkeypatch) as server:
        server.engine.loaded.set_exception(ModelLoadError("It has no weights."))
        with pytest.raises(ModelLoadError, match=r"It has no weights\."):
            await server.task
        with pytest.raises(httpx.ConnectError):
            await server.http.get("/health")
    assert server.ready == []
    assert server.engine.num_stops == 0, "what has not started is not stopped"


async def test_sigterm_while_the_model_loads_cancels_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _loading(tmp_path, monkeypatch) as server:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(asyncio.CancelledError):
            await server.task
    assert server.engine.loaded.cancelled()
    assert server.ready == []


class EngineThatIsEntered(SlowEngine):
    """Loads as its context is entered."""

    is_loading = False

    async def __aenter__(self) -> EngineThatIsEntered:
        self.is_loading = True
        await self._load()
        return self


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_server_that_shares_its_database_accepts_connections_once_its_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    """A proxy sends messages to the other servers meanwhile."""
    monkeypatch.setattr(serving, "give_way_to_engine", lambda: None)
    monkeypatch.setattr("app.main.mount_ui", lambda app, _services: app)
    listener = serving.bind("127.0.0.1", 0)
    engine, ready = EngineThatIsEntered(), list[str | None]()
    settings = AppSettings(data_dir=tmp_path, database_url=database_url, _env_file=None, auto_titles=False)
    task = asyncio.create_task(serving.serve(settings, engine, listener, ready.append))
    async with httpx.AsyncClient(base_url=serving.address_of(listener), timeout=30) as http:
        await eventually(lambda: engine.is_loading)
        with pytest.raises(httpx.ConnectError):
            await http.get("/health")
        engine.loaded.set_result(None)
        await eventually(lambda: bool(ready))
        assert (await http.get("/ready")).status_code == 200
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    listener.close()
