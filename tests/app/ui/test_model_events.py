"""The listeners of the model panel, called as a browser calls them and as somebody else might."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.domain.roles import UserRole
from engine import ModelLoadError
from testing.waiting import eventually
from tests.app.desk import Desk, desk
from tests.app.gradio_calls import messages_of
from tests.app.live_server import reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUN = "/gradio_api/run/predict"
CHANGES: dict[str, dict[str, Any]] = {"swap": {"model": "models/other"}, "sleep": {}, "wake": {}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk(tmp_path_factory.mktemp("data")) as running:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await running.add(name, role)
        yield running


@pytest.fixture
def here(opened: Desk) -> Desk:
    reset_engine(opened.live.engine)
    return opened


def _classes(component: dict[str, Any]) -> list[str]:
    return component["props"].get("elem_classes") or []


async def endpoint_of(http: httpx.AsyncClient, event: str) -> dict[str, Any]:
    config = (await http.get("/config")).json()
    model = next(one["id"] for one in config["components"] if "dm-component-model" in _classes(one))
    found: dict[str, Any] = next(one for one in config["dependencies"] if [model, event] in one["targets"])
    return found


async def body_of(http: httpx.AsyncClient, event: str, detail: object, session: str) -> dict[str, Any]:
    """What a browser sends for this event."""
    return {
        "fn_index": (await endpoint_of(http, event))["id"],
        "session_hash": session,
        "data": [],
        "event_data": detail,
    }


async def fire(http: httpx.AsyncClient, event: str, detail: object, session: str, **fields: object) -> dict[str, Any]:
    """What the server answers to a client that sends this event, with ``fields`` in the body."""
    body = {**await body_of(http, event, detail, session), **fields}
    answer = await http.post(RUN, json=body)
    return {"success": answer.status_code == 200, "output": answer.json()}


async def test_they_are_not_public(here: Desk) -> None:
    for event in ("refresh", *CHANGES):
        assert (await endpoint_of(here.clients["ada"], event))["api_visibility"] == "private"


@pytest.mark.parametrize("name", ["ada", "ben", "cyd"])
async def test_every_role_sees_the_state(here: Desk, name: str) -> None:
    http = here.clients[name]
    answer = await fire(http, "refresh", None, f"refresh of {name}")
    shown, told = answer["output"]["data"][0], (await http.get("/api/engine")).json()
    assert {key: shown[key] for key in ("state", "source", "model", "remote")} == {
        key: told[key] for key in ("state", "source", "model", "remote")
    }


@pytest.mark.parametrize("name", ["ben", "cyd"])
@pytest.mark.parametrize("event", CHANGES)
async def test_only_admins_change_the_model(here: Desk, name: str, event: str) -> None:
    answer = await fire(here.clients[name], event, {**CHANGES[event], "request": 1}, f"{event} of {name}")
    assert (answer["success"], answer["output"]["error"]) == (False, "Only admins can do this. Ask an admin.")
    assert here.live.engine.lifecycle_calls == []


async def test_only_admins_change_the_model_through_the_queue(here: Desk) -> None:
    """The page does not use it for this, but it is open to every user."""
    ben = here.clients["ben"]
    body = await body_of(ben, "swap", CHANGES["swap"], "bens queue")
    assert (await ben.post("/gradio_api/queue/join", json=body)).status_code == 200
    [answer] = [one async for one in messages_of(ben, "bens queue") if one["msg"] == "process_completed"]
    assert (answer["success"], answer["output"]["error"]) == (False, "Only admins can do this. Ask an admin.")
    assert here.live.engine.lifecycle_calls == []


async def test_a_body_makes_no_admin(here: Desk) -> None:
    ada = here.ids["ada"]
    forged = {"user_id": ada, "username": "ada", "identity": {"role": "admin"}, "request": {"username": "ada"}}
    answer = await fire(here.clients["ben"], "swap", {"model": "models/other", **forged}, "forged admin", **forged)
    assert (answer["success"], answer["output"]["error"]) == (False, "Only admins can do this. Ask an admin.")
    assert here.live.engine.lifecycle_calls == []


@pytest.mark.parametrize("event", CHANGES)
async def test_admins_do(here: Desk, event: str) -> None:
    answer = await fire(here.clients["ada"], event, {**CHANGES[event], "request": 7}, f"{event} of ada")
    value = answer["output"]["data"][0]
    assert (answer["success"], value["request"], value["error"]) == (True, 7, None)
    assert [call[0] for call in here.live.engine.lifecycle_calls] == [event]


@pytest.mark.parametrize(
    ("event", "detail"),
    [
        ("swap", {"model": "  models/other "}),
        ("swap", {"model": "models/other", "revision": "main", "max_model_len": 64, "timeout": 3}),
        ("sleep", {"timeout": 3}),
        ("wake", {}),
    ],
)
async def test_the_engine_is_called_as_by_the_api(here: Desk, event: str, detail: dict[str, Any]) -> None:
    http, engine = here.clients["ada"], here.live.engine
    assert (await fire(http, event, detail, "as the API"))["success"]
    by_listener = list(engine.lifecycle_calls)
    reset_engine(engine)
    assert (await http.post(f"/api/engine/{event}", json=detail)).status_code == 200
    assert by_listener == engine.lifecycle_calls != []


async def test_a_model_is_loaded_to_the_end_though_its_tab_is_closed(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    http, engine = here.clients["ada"], here.live.engine
    begun, closed, swap = asyncio.Event(), asyncio.Event(), engine.swap

    async def slow_swap(*args: Any, **options: Any) -> None:
        begun.set()
        await closed.wait()
        await swap(*args, **options)

    monkeypatch.setattr(engine, "swap", slow_swap)
    tab = asyncio.create_task(fire(http, "swap", CHANGES["swap"], "closed tab"))
    await begun.wait()
    tab.cancel()
    await asyncio.wait([tab])
    await fire(http, "refresh", None, "another tab")  # by now the server has seen the tab hang up
    assert engine.lifecycle_calls == []
    closed.set()
    await eventually(lambda: bool(engine.lifecycle_calls))
    assert engine.lifecycle_calls[0][:2] == ("swap", "models/other")


async def test_what_goes_wrong_is_said_and_ends_the_request(here: Desk) -> None:
    here.live.engine.lifecycle_error = ModelLoadError("There is no model folder at x.")
    answer = await fire(here.clients["ada"], "swap", {"model": "models/x", "request": 2}, "unusable")
    value = answer["output"]["data"][0]
    assert (value["request"], value["error"], value["state"]) == (2, "There is no model folder at x.", "ready")


@pytest.mark.parametrize(
    "detail",
    [
        None,
        3,
        "swap",
        [],
        {},
        {"model": None},
        {"model": "  "},
        {"model": 4},
        {"model": "x" * 100_000},
        {"_x": 1},
        {"model": "x", "timeout": "soon"},
        {"model": "x", "max_model_len": 1},
    ],
)
async def test_a_forged_event_is_refused_with_a_sentence(here: Desk, detail: object) -> None:
    answer = await fire(here.clients["ada"], "swap", detail, "forged")
    assert answer["success"], answer
    error = answer["output"]["data"][0]["error"]
    assert error.endswith(".")
    assert len(error) < 300
    assert "Traceback" not in str(answer)
    assert here.live.engine.lifecycle_calls == []


async def test_values_that_no_listener_takes_change_nothing(here: Desk) -> None:
    answer = await fire(
        here.clients["ada"], "swap", {"model": "x", "request": {"a": 1}}, "too many", data=[1, "x" * 10_000]
    )
    assert "Traceback" not in str(answer)
    assert "x" * 100 not in str(answer)
    if answer["success"]:
        assert answer["output"]["data"][0]["request"] is None


async def test_anothers_session_is_not_there(here: Desk) -> None:
    ada, ben = here.clients["ada"], here.clients["ben"]
    await fire(ada, "refresh", None, "adas own")
    endpoint = await endpoint_of(ada, "refresh")
    body = {"fn_index": endpoint["id"], "session_hash": "adas own", "data": []}
    for path in (RUN, "/gradio_api/queue/join"):
        assert (await ben.post(path, json=body)).status_code == 404
    assert (await ben.get("/gradio_api/queue/data?session_hash=adas own")).status_code == 404
    async with here.client() as nobody:
        for path in (RUN, "/gradio_api/queue/join"):
            assert (await nobody.post(path, json=body)).status_code == 401
