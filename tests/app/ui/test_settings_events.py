"""The listener of the presets, called as a browser calls it and as somebody else might."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.domain.presets import PRESET_PARAMETERS, PRESETS
from app.domain.roles import UserRole
from tests.app.desk import Desk, desk
from tests.app.gradio_calls import messages_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk(tmp_path_factory.mktemp("data")) as running:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await running.add(name, role)
        yield running


async def endpoint_of(http: httpx.AsyncClient) -> dict[str, Any]:
    config = (await http.get("/config")).json()
    preset = next(one["id"] for one in config["components"] if one["props"].get("elem_id") == "dm-preset")
    found: dict[str, Any] = next(
        one for one in config["dependencies"] if [preset, "input"] in one["targets"] and one["backend_fn"]
    )
    return found


async def choose(http: httpx.AsyncClient, data: list[object], session: str) -> dict[str, Any]:
    body = {"fn_index": (await endpoint_of(http))["id"], "session_hash": session, "data": data}
    answer = await http.post("/gradio_api/queue/join", json=body)
    assert answer.status_code == 200, answer.text
    async for message in messages_of(http, session):
        if message["msg"] == "process_completed":
            return message
    raise AssertionError("no answer")


async def test_it_is_not_public(here: Desk) -> None:
    assert (await endpoint_of(here.clients["ada"]))["api_visibility"] == "private"


@pytest.mark.parametrize("name", ["ada", "ben", "cyd"])
async def test_a_preset_sets_the_sliders_the_rest_is_the_models(here: Desk, name: str) -> None:
    http = here.clients[name]
    defaults = (await http.get("/ui/options")).json()["defaults"]
    for preset in PRESETS:
        answer = await choose(http, [preset.name], f"{preset.name} of {name}")
        expected = [preset.values.get(each.name, defaults[each.name]) for each in PRESET_PARAMETERS]
        assert answer["output"]["data"] == expected


@pytest.mark.parametrize("given", [None, 1, "", "Precise", ["precise"], {"name": "precise"}, "x" * 1_000_000])
async def test_what_is_no_preset_is_refused_with_a_sentence(here: Desk, given: object) -> None:
    answer = await choose(here.clients["ben"], [given], "forged")
    assert (answer["success"], answer["output"]["error"]) == (
        False,
        "There is no such preset. Choose one from the list.",
    )


@pytest.mark.parametrize("data", [[], ["precise", "x" * 10_000]])
async def test_a_wrong_number_of_values_shows_no_traceback(here: Desk, data: list[object]) -> None:
    answer = await choose(here.clients["ben"], data, "wrong number")
    assert "Traceback" not in str(answer)
    assert "xxx" not in str(answer)


async def test_anothers_session_is_not_there(here: Desk) -> None:
    ada, ben = here.clients["ada"], here.clients["ben"]
    await choose(ada, ["precise"], "adas settings")
    body = {"fn_index": (await endpoint_of(ada))["id"], "session_hash": "adas settings", "data": ["precise"]}
    assert (await ben.post("/gradio_api/queue/join", json=body)).status_code == 404
