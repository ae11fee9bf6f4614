"""Tools over HTTP with accounts: which prompts offer them, who chooses, who decides, and what the stream tells."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.domain.roles import UserRole
from testing.fake_engine import call_pieces
from testing.tool_servers import DemoTools, install_demo_tools
from tests.app.desk import Desk, desk

PROMPT = {"title": "Orders", "description": "Looks up orders.", "body": "You look up orders.", "tools": ["desk"]}
ORDER = call_pieces("desk__order", '{"number": 7}')
SETTINGS = {"system_prompt_name": "orders"}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path / "data", gradio=False) as opened:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await opened.add(name, role)
        yield opened


@pytest.fixture
def tools(here: Desk) -> DemoTools:
    return install_demo_tools(here.services, here.live.engine)


async def events(http: httpx.AsyncClient, turn_id: str) -> list[tuple[str, Any]]:
    text = (await http.get(f"/api/turns/{turn_id}/events")).text
    parts = [dict(line.partition(": ")[::2] for line in part.splitlines()) for part in text.split("\n\n")]
    return [(part["event"], json.loads(part["data"])) for part in parts if "event" in part]


async def save_prompt(here: Desk) -> None:
    saved = await here.clients["ada"].put("/api/desk/templates/prompt/orders", json={"after": 0, "template": PROMPT})
    assert saved.status_code in (200, 204), saved.text


async def test_an_admin_chooses_the_tools_of_a_prompt_and_its_chats_have_them(here: Desk, tools: DemoTools) -> None:
    ada, ben = here.clients["ada"], here.clients["ben"]
    for name in ("ben", "cyd"):
        assert (await here.clients[name].get("/api/desk/tools")).status_code in (403, 404)
    (server,) = (await ada.get("/api/desk/tools")).json()
    assert server["problem"] is None
    assert {"name": "order", "description": "Looks up an order.", "asks": True} in server["tools"]
    await save_prompt(here)
    (prompt,) = (one for one in (await ben.get("/api/desk/templates/prompt")).json() if one["name"] == "orders")
    assert prompt["template"]["tools"] == ["desk"]
    for settings, offered in (({}, 0), (SETTINGS, 4), ({**SETTINGS, "use_tools": False}, 0)):
        sent = await ben.post("/api/turns", json={"text": "hi", "settings": settings})
        await events(ben, sent.json()["turn_id"])
        assert len(here.live.engine.options[-1].tools) == offered, settings
    # An own text takes the place of the admin's prompt, and of its tools.
    sent = await ben.post("/api/turns", json={"text": "hi", "settings": {**SETTINGS, "system_prompt": "Do anything."}})
    await events(ben, sent.json()["turn_id"])
    assert here.live.engine.options[-1].tools == ()
    canned = {**PROMPT, "tools": ["desk"]}
    refused = await ada.put("/api/desk/templates/canned/orders", json={"after": 0, "template": canned})
    assert refused.status_code == 422
    assert "no tools" in refused.json()["error"]["message"]


async def test_only_the_owner_decides(here: Desk, tools: DemoTools) -> None:
    ben = here.clients["ben"]
    await save_prompt(here)
    here.live.engine.say("Let me look.", *ORDER)
    sent = (await ben.post("/api/turns", json={"text": "Where is it?", "settings": SETTINGS})).json()
    told = [data["use"] for name, data in await events(ben, sent["turn_id"]) if name == "tool_use"]
    assert [(use["name"], use["arguments"], use["status"]) for use in told] == [
        ("desk__order", '{"number": 7}', "waiting")
    ]
    path, decision = f"/api/messages/{sent['message_id']}/tools", {"allow": [told[0]["id"]]}
    for name, status in (("ada", 404), ("cyd", 403)):
        assert (await here.clients[name].post(path, json=decision)).status_code == status
    async with here.client() as nobody:
        assert (await nobody.post(path, json=decision)).status_code == 401
    for wrong in (
        {},
        {"allow": ["x"]},
        {"allow": [told[0]["id"]], "deny": [told[0]["id"]]},
        {"allow": "x"},
        {"all": 1},
    ):
        assert (await ben.post(path, json=wrong)).status_code in (400, 422)
    assert tools.calls == []
    here.live.engine.say("On its way.")
    assert (await ben.post(path, json=decision)).status_code == 201
    names = [name for name, _ in await events(ben, sent["turn_id"])]
    assert names[-1] == "end"
    assert tools.calls == ["order 7"]
    message = (await ben.get(f"/api/conversations/{sent['conversation_id']}")).json()["messages"][-1]
    assert message["tool_uses"][0]["result"] == "Order 7 was sent on Monday."
    exported = (await ben.get("/api/export")).text
    assert "Order 7 was sent on Monday." in exported
    markdown = (await ben.get(f"/api/conversations/{sent['conversation_id']}/export?format=markdown")).text
    assert "Order 7 was sent on Monday." in markdown
    again = await ben.post("/api/import", content=exported, headers={"Content-Type": "application/json"})
    assert again.status_code in (200, 201), again.text
    assert (await ben.post(path, json=decision)).status_code == 422


async def test_a_file_cannot_bring_a_call_that_waits(here: Desk, tools: DemoTools) -> None:
    ben = here.clients["ben"]
    await save_prompt(here)
    here.live.engine.say(*ORDER)
    sent = (await ben.post("/api/turns", json={"text": "Where is it?", "settings": SETTINGS})).json()
    await events(ben, sent["turn_id"])
    exported = json.loads((await ben.get("/api/export")).text)
    (use,) = exported["conversations"][0]["messages"][-1]["tool_uses"]
    assert use["status"] == "denied"
    use["status"] = "waiting"
    headers = {"Content-Type": "application/json"}
    answer = await ben.post("/api/import", content=json.dumps(exported), headers=headers)
    assert "tool_uses" in answer.text
    assert tools.calls == []
