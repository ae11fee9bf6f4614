"""``/api/engine``: what the engine is doing, sleep, wake and another model; and deadlines through ``/v1``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from engine import (
    DeadlineError,
    EngineBusyError,
    EngineError,
    EngineState,
    EngineStoppedError,
    FinishReason,
    ModelLoadError,
    ReplyInterruptedError,
)
from testing.waiting import eventually
from tests.app.live_server import RunningApp, live_server, reset_engine

ON_ONE_LOOP = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    async with live_server(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def live(server: RunningApp) -> RunningApp:
    reset_engine(server.engine)
    return server


@ON_ONE_LOOP
async def test_it_tells_state_model_and_numbers(live: RunningApp) -> None:
    now = (await live.http.get("/api/engine")).json()
    assert now["state"] == "ready"
    assert now["reason"] is None
    assert now["source"] == "models/fake"
    assert now["model"]["max_model_len"] == 4096
    assert now["stats"]["utilisation"]["device_busy"] == 0


@ON_ONE_LOOP
async def test_sleep_and_wake(live: RunningApp) -> None:
    answer = await live.http.post("/api/engine/sleep", json={"timeout": 3})
    assert (answer.status_code, answer.json()["state"]) == (200, "asleep")
    assert (await live.http.get("/ready")).status_code == 503
    answer = await live.http.post("/api/engine/wake", json={})
    assert (answer.status_code, answer.json()["state"]) == (200, "ready")
    assert (await live.http.get("/ready")).status_code == 200
    assert live.engine.lifecycle_calls == [("sleep", 3), ("wake",)]


@ON_ONE_LOOP
async def test_swap_shows_the_new_model_everywhere(live: RunningApp) -> None:
    body = {"model": "  models/other ", "max_model_len": 256, "timeout": 5}
    answer = await live.http.post("/api/engine/swap", json=body)
    assert answer.json()["model"]["name"] == "other"
    assert live.engine.lifecycle_calls == [("swap", "models/other", None, 256, 5)]
    assert (await live.http.get("/v1/models")).json()["data"][0]["id"] == "other"
    assert (await live.http.get("/ui/options")).json()["model"]["name"] == "other"
    assert (await live.http.get("/ready")).json()["model"] == "other"


@ON_ONE_LOOP
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ModelLoadError("There is no model folder at x."), 422, "model_unusable"),
        (EngineBusyError("The engine is busy."), 409, "conflict"),
        (EngineStoppedError("The engine is not started."), 503, "engine_unavailable"),
    ],
)
async def test_what_goes_wrong_is_said(live: RunningApp, error: EngineError, status: int, code: str) -> None:
    live.engine.lifecycle_error = error
    for path, body in (("swap", {"model": "x"}), ("sleep", {}), ("wake", {})):
        answer = await live.http.post(f"/api/engine/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]) == (status, {"code": code, "message": str(error)})


@ON_ONE_LOOP
@pytest.mark.parametrize(
    "wrong",
    [{"model": "  "}, {"model": None}, {"max_model_len": 3}, {"timeout": -1}, {"timeout": 1e9}, {"unknown": 1}],
)
async def test_a_body_that_makes_no_sense_changes_nothing(live: RunningApp, wrong: dict[str, object]) -> None:
    assert (await live.http.post("/api/engine/swap", json={"model": "x", **wrong})).status_code == 422
    assert live.engine.lifecycle_calls == []


@ON_ONE_LOOP
async def test_another_website_cannot_change_the_model(live: RunningApp) -> None:
    answer = await live.http.post("/api/engine/swap", json={"model": "x"}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert live.engine.lifecycle_calls == []


@ON_ONE_LOOP
async def test_an_engine_elsewhere_keeps_its_model(live: RunningApp) -> None:
    services = live.app.state.services
    live.app.state.services = replace(services, engine=object())
    try:
        answer = await live.http.post("/api/engine/swap", json={"model": "x"})
    finally:
        live.app.state.services = services
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_supported")


@ON_ONE_LOOP
async def test_a_reply_cut_off_for_another_model_is_interrupted_with_the_reason(live: RunningApp) -> None:
    live.engine.say("So ", "far", fail_at=1, error=ReplyInterruptedError("Another model was loaded."))
    turn = (await live.http.post("/api/turns", json={"text": "hello"})).json()

    async def message() -> dict[str, object]:
        conversation = (await live.http.get(f"/api/conversations/{turn['conversation_id']}")).json()
        found: dict[str, object] = conversation["messages"][-1]
        return found

    services = live.app.state.services
    await eventually(lambda: not services.turns._live.by_id)
    reply = await message()
    assert (reply["status"], reply["content"], reply["error"]) == ("interrupted", "So ", "Another model was loaded.")


@ON_ONE_LOOP
async def test_asleep_a_message_is_refused_with_a_sentence_and_nothing_is_written(live: RunningApp) -> None:
    live.engine.refuse = EngineStoppedError("The model is asleep. Wake it up first.")
    before = (await live.http.get("/api/conversations")).json()["items"]
    answer = await live.http.post("/api/turns", json={"text": "hello"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, str(live.engine.refuse))
    assert (await live.http.get("/api/conversations")).json()["items"] == before


CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


@ON_ONE_LOOP
async def test_a_deadline_reaches_the_engine_and_ends_as_a_limit(live: RunningApp) -> None:
    live.engine.say("So far", finish_reason=FinishReason.DEADLINE)
    answer = (await live.http.post("/v1/chat/completions", json={**CHAT, "deadline": 2.5})).json()
    assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("length", "deadline")
    assert answer["choices"][0]["message"]["content"] == "So far"
    assert live.engine.deadlines == [2.5]


@ON_ONE_LOOP
async def test_a_deadline_that_passed_while_waiting_is_a_504_that_is_not_tried_again(live: RunningApp) -> None:
    live.engine.refuse = DeadlineError("The reply had not begun within its deadline of 2 seconds.")
    answer = await live.http.post("/v1/chat/completions", json={**CHAT, "deadline": 2})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"


@ON_ONE_LOOP
async def test_a_deadline_must_be_a_time_to_come(live: RunningApp) -> None:
    for deadline in (0, -1, "soon"):
        answer = await live.http.post("/v1/chat/completions", json={**CHAT, "deadline": deadline})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "deadline")


def test_every_state_has_its_words_on_the_page() -> None:
    from app.ui.static_files import STATIC_DIR

    script = (STATIC_DIR / "components" / "model" / "model_text.js").read_text(encoding="utf-8")
    for state in EngineState:
        assert f'  {state.value}: "' in script
