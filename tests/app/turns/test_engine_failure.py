"""A step of the real engine fails under the real application: the reply says so, and the chat goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID
from app.domain.views import MessageStatus
from app.main import create_app
from app.services.container import Services
from app.settings import AppSettings
from app.turns.events import TurnEnd
from engine import Engine, EngineSettings
from engine.execution import runner as runner_module
from testing.models import make_model


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    model = make_model(tmp_path / "model", eos=False)
    engine = Engine(EngineSettings(model=str(model), dtype="float32"))
    app = create_app(AppSettings(data_dir=tmp_path / "data", _env_file=None), engine)
    async with app.router.lifespan_context(app):
        yield app


@pytest.mark.usefixtures("single_steps")
async def test_the_reply_says_so_and_the_chat_goes_on(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    services: Services = app.state.services
    execute = runner_module.Runner.execute
    fail, hold = threading.Event(), threading.Event()

    def faulty(runner, plan):  # type: ignore[no-untyped-def]
        if plan.chunks[0].request.id == "warm-up":
            assert hold.wait(20)  # the engine stays down until the test has looked
        elif fail.is_set() and plan.chunks[0].request.num_output_tokens > 3:
            fail.clear()
            raise RuntimeError("the device fell off")
        return execute(runner, plan)

    monkeypatch.setattr(runner_module.Runner, "execute", faulty)

    async def ask(text: str, conversation_id: str | None = None) -> tuple[str, TurnEnd]:
        ref = await services.turns.start(
            LOCAL_USER_ID, text=text, conversation_id=conversation_id, settings=ChatSettings(max_tokens=30)
        )
        async for event in services.turns.events(LOCAL_USER_ID, ref.turn_id):
            last = event
        assert isinstance(last, TurnEnd)
        return ref.conversation_id, last

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        fail.set()
        conversation, end = await ask("hello")
        assert end.status is MessageStatus.ERROR
        assert "the device fell off" in (end.error or "")
        assert "restarts by itself" in (end.error or "")
        ready = await http.get("/ready")
        assert (ready.status_code, "the device fell off" in ready.json()["reason"]) == (503, True)
        assert (await http.get("/api/engine")).json()["state"] == "restarting"
        going_on = asyncio.create_task(ask("and now?", conversation))  # is taken, and waits
        hold.set()
        assert (await going_on)[1].status is MessageStatus.COMPLETE
        assert (await http.get("/ready")).status_code == 200
        assert (await http.get("/api/engine")).json()["stats"]["num_restarts"] == 1
