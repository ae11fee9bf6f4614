"""The listeners of presets and system prompts, called as a browser calls them, and with forged data."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.domain.presets import PRESET_PARAMETERS, PRESETS
from app.domain.roles import UserRole
from tests.app.desk import Desk, desk
from tests.app.gradio_calls import messages_of

RUN = "/gradio_api/run/predict"
JOIN = "/gradio_api/queue/join"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk(tmp_path_factory.mktemp("data")) as running:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await running.add(name, role)
        yield running


async def endpoint_of(http: httpx.AsyncClient, control: str = "dm-preset") -> dict[str, Any]:
    config = (await http.get("/config")).json()
    chosen = next(one["id"] for one in config["components"] if control in (one["props"].get("elem_classes") or ()))
    found: dict[str, Any] = next(
        one for one in config["dependencies"] if [chosen, "input"] in one["targets"] and one["backend_fn"]
    )
    return found


async def body_of(http: httpx.AsyncClient, data: Sequence[object], session: str, control: str) -> dict[str, Any]:
    """What a browser sends for this choice."""
    return {"fn_index": (await endpoint_of(http, control))["id"], "session_hash": session, "data": data}


async def choose(
    http: httpx.AsyncClient, data: list[object], session: str, control: str = "dm-preset"
) -> dict[str, Any]:
    body = json.dumps(await body_of(http, data, session, control))  # httpx refuses half of a surrogate pair
    answer = await http.post(RUN, content=body, headers={"Content-Type": "application/json"})
    return {"success": answer.status_code == 200, "output": answer.json()}


async def choose_prompt(http: httpx.AsyncClient, name: object, session: str) -> dict[str, Any]:
    answer = await choose(http, [name], session, "dm-prompt")
    assert answer["success"], answer
    found: dict[str, Any] = answer["output"]["data"][0]
    return found


@pytest.mark.parametrize("control", ["dm-preset", "dm-prompt"])
async def test_it_is_not_public(here: Desk, control: str) -> None:
    assert (await endpoint_of(here.clients["ada"], control))["api_visibility"] == "private"


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


async def test_the_queue_is_open_to_every_user_too(here: Desk) -> None:
    ben = here.clients["ben"]
    for data, error in ((["precise"], None), (["forged"], "There is no such preset. Choose one from the list.")):
        body = await body_of(ben, data, f"queued {data[0]}", "dm-preset")
        assert (await ben.post(JOIN, json=body)).status_code == 200
        ended = [one async for one in messages_of(ben, f"queued {data[0]}") if one["msg"] == "process_completed"]
        assert [(one["success"], one["output"].get("error")) for one in ended] == [(error is None, error)]


@pytest.mark.parametrize("control", ["dm-preset", "dm-prompt"])
async def test_too_few_values_are_refused(here: Desk, control: str) -> None:
    ben = here.clients["ben"]
    answer = await ben.post(RUN, json=await body_of(ben, [], "too few", control))
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == "The field 'data' must be a list of 1 value."


@pytest.mark.parametrize(("control", "name"), [("dm-preset", "precise"), ("dm-prompt", "none")])
async def test_too_many_values_change_nothing(here: Desk, control: str, name: str) -> None:
    answer = await choose(here.clients["ben"], [name, "x" * 10_000], "too many", control)
    expected = await choose(here.clients["ben"], [name], "as many", control)
    assert answer["output"]["data"] == expected["output"]["data"]


@pytest.mark.parametrize("control", ["dm-preset", "dm-prompt"])
async def test_anothers_session_is_not_there(here: Desk, control: str) -> None:
    ada, ben = here.clients["ada"], here.clients["ben"]
    body = await body_of(ada, ["precise"], f"adas {control}", control)
    assert (await ada.post(RUN, json=body)).status_code == 200
    for path in (RUN, JOIN):
        assert (await ben.post(path, json=body)).status_code == 404


@pytest.mark.parametrize("name", ["ada", "ben", "cyd"])
async def test_a_prompt_is_found_as_the_page_has_loaded_it(here: Desk, name: str) -> None:
    http = here.clients[name]
    prompts = (await http.get("/ui/options")).json()["prompts"]
    assert len(prompts) > 0
    for prompt in prompts:
        found = await choose_prompt(http, prompt["name"], f"{prompt['name']} of {name}")
        assert found == {"name": prompt["name"], "prompt": prompt}


async def test_a_prompt_is_found_as_it_is_now_until_it_is_removed(here: Desk) -> None:
    ada, ben = here.clients["ada"], here.clients["ben"]
    template = {
        "title": "Boats",
        "description": "Sells boats.",
        "variables": [{"name": "kind", "description": "Which boats?", "default": "kayaks"}],
        "recommended": {"temperature": 0.3},
        "body": "You sell {{ kind }}.",
    }
    address = "/api/desk/templates/prompt/boats"
    for version, body in enumerate(["You sell {{ kind }}.", "You rent {{ kind }}."]):
        written = await ada.put(address, json={"template": {**template, "body": body}, "after": version})
        assert written.is_success, written.text
        prompt = (await choose_prompt(ben, "boats", f"boats {version}"))["prompt"]
        assert prompt["text"] == body.replace("{{ kind }}", "kayaks")
        assert prompt["title"] == "Boats"
        assert prompt["variables"] == template["variables"]
        assert prompt["recommended"] == {"temperature": 0.3}
    removed = await ada.post(f"{address}/remove", json={"after": 2})
    assert removed.is_success, removed.text
    error = "This system prompt has been removed. Choose another one."
    assert await choose_prompt(ben, "boats", "no boats") == {"name": "boats", "error": error}


@pytest.mark.parametrize("name", ["none", "own"])
async def test_no_prompt_is_looked_up_where_none_is_named(here: Desk, name: str) -> None:
    assert await choose_prompt(here.clients["ben"], name, f"it is {name}") == {"name": name}


@pytest.mark.parametrize(
    "given", [None, 1, True, ["support-desk"], {"name": "support-desk"}, "x" * 1_000_000, "\ud800", "boats\udfff"]
)
async def test_what_is_no_prompt_is_refused_with_a_sentence(here: Desk, given: object) -> None:
    answer = await choose(here.clients["ben"], [given], "forged prompt", "dm-prompt")
    assert (answer["success"], answer["output"]["error"]) == (
        False,
        "There is no such system prompt. Choose one from the list.",
    )


@pytest.mark.parametrize("given", ["", "Support-Desk", "../support-desk", "solved", "%", "\u0000", "<script>"])
async def test_a_name_that_is_not_in_use_finds_nothing(here: Desk, given: str) -> None:
    found = await choose_prompt(here.clients["ben"], given, "unknown prompt")
    assert found == {"name": given, "error": "This system prompt has been removed. Choose another one."}
