"""Presets of one's own: whose they are, what they hold, and what new chats begin with."""

from __future__ import annotations

import asyncio

import pytest

from app.domain.chat_settings import ChatSettings
from app.store.chat.own_presets import MAX_PRESETS
from tests.app.desk import Desk

COOL = {"temperature": 0.3, "top_k": 5, "system_prompt": "Be brief.", "seed": 7, "stop": ["END"]}


async def names(desk: Desk, user: str) -> list[str]:
    answer = await desk.clients[user].get("/api/presets")
    return [preset["name"] for preset in answer.json()["presets"]]


async def test_a_preset_holds_the_sampling_and_is_its_users_alone(here: Desk) -> None:
    ada, ben = here.clients["ada"], here.clients["ben"]
    made = (await ben.post("/api/presets", json={"name": "  Mine\n", "settings": COOL})).json()
    assert made["name"] == "Mine"
    assert made["values"] == {"temperature": 0.3, "top_k": 5}
    again = (await ben.post("/api/presets", json={"name": "Mine", "settings": {"top_p": 0.5}})).json()
    assert (again["id"], again["values"]) == (made["id"], {"top_p": 0.5}), "replaced"
    await ada.post("/api/presets", json={"name": "Mine", "settings": COOL})

    assert await names(here, "cyd") == []
    for other in ("ada", "cyd"):
        refused = await here.clients[other].delete(f"/api/presets/{made['id']}")
        assert refused.status_code == (404 if other == "ada" else 403), refused.text
    assert await names(here, "ben") == ["Mine"]
    assert (await ben.delete(f"/api/presets/{made['id']}")).status_code == 204
    assert (await ben.delete(f"/api/presets/{made['id']}")).status_code == 404
    assert await names(here, "ada") == ["Mine"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": " ", "settings": {}}, "1 to 60 characters"),
        ({"name": "x" * 61, "settings": {}}, "1 to 60 characters"),
        ({"name": "PRECISE", "settings": {}}, "Choose another name"),
        ({"name": "custom", "settings": {}}, "Choose another name"),
        ({"name": "Hot", "settings": {"temperature": 11}}, "between 0 and 10"),
        ({"name": "Hot", "settings": {"warmth": 1}}, "warmth"),
    ],
)
async def test_what_is_wrong_is_said(here: Desk, body: dict[str, object], said: str) -> None:
    refused = await here.clients["ben"].post("/api/presets", json=body)
    assert refused.status_code in (400, 422)
    assert said in refused.json()["error"]["message"]
    assert await names(here, "ben") == []


async def test_new_chats_begin_with_what_was_chosen(here: Desk) -> None:
    ben = here.clients["ben"]
    assert (await ben.get("/api/presets")).json()["new_chats"] is None
    assert (await ben.put("/api/presets/new-chats", json={"settings": COOL})).status_code == 204
    stored = (await ben.get("/api/presets")).json()["new_chats"]
    assert {name: stored[name] for name in COOL} == COOL
    assert (await here.clients["ada"].get("/api/presets")).json()["new_chats"] is None
    refused = await ben.put("/api/presets/new-chats", json={"settings": {"temperature": -1}})
    assert refused.status_code in (400, 422)
    assert (await ben.get("/api/presets")).json()["new_chats"] == stored
    await ben.put("/api/presets/new-chats", json={"settings": None})
    assert (await ben.get("/api/presets")).json()["new_chats"] is None


async def test_many_saves_at_once_keep_to_the_limit_and_to_one_of_each_name(here: Desk) -> None:
    ben = here.clients["ben"]
    for number in range(MAX_PRESETS - 2):
        await here.services.presets.save(here.ids["ben"], f"p{number}", ChatSettings(temperature=0.5))
    bodies = [{"name": f"new {number % 4}", "settings": COOL} for number in range(12)]
    answers = await asyncio.gather(*(ben.post("/api/presets", json=body) for body in bodies))
    assert {answer.status_code for answer in answers} == {200, 409}
    kept = await names(here, "ben")
    assert len(kept) == len(set(kept)) == MAX_PRESETS
    refused = next(answer for answer in answers if answer.status_code != 200)
    assert "Delete one first" in refused.json()["error"]["message"]


async def test_they_go_with_their_user(here: Desk) -> None:
    await here.clients["ben"].post("/api/presets", json={"name": "Mine", "settings": COOL})
    gone = await here.clients["ada"].request("DELETE", f"/api/desk/people/{here.ids['ben']}", json={"name": "ben"})
    assert gone.is_success, gone.text
    assert await here.services.presets.all(here.ids["ben"]) == []
