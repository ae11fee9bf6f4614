"""The desk's API over HTTP, as an agent, a viewer, an admin and nobody."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.domain.roles import UserRole
from tests.app.desk import Desk, desk

SECRET_WORDS = "the turbot is overcooked"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path / "data", gradio=False) as opened:
        for name, role in (("ada", UserRole.ADMIN), ("gus", UserRole.AGENT), ("vera", UserRole.VIEWER)):
            await opened.add(name, role)
        yield opened


def days() -> dict[str, str]:
    today = datetime.now(UTC).date()
    return {"first": str(today - timedelta(days=1)), "last": str(today + timedelta(days=1))}


async def ask(http: httpx.AsyncClient, text: str) -> str:
    """The reply's id, once it has ended."""
    turn = (await http.post("/api/turns", json={"text": text})).json()
    async with http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as events:
        async for line in events.aiter_lines():
            if line == "event: end":
                break
    return str(turn["message_id"])


async def test_each_role_sees_and_changes_what_it_may(here: Desk) -> None:
    gus, template = here.clients["gus"], {"title": "T", "description": "d", "body": "hello"}
    reply = await ask(gus, SECRET_WORDS)
    thumb = {"rating": "down", "reasons": ["wrong"], "comment": SECRET_WORDS}
    assert (await gus.put(f"/api/messages/{reply}/feedback", json=thumb)).status_code == 200
    version, written = "/api/desk/templates/canned/hello", {"after": 0, "template": template}
    doors: list[tuple[str, str, Any, str]] = [
        ("GET", "/api/desk", None, "agv"),
        ("GET", "/desk", None, "agv"),
        ("GET", "/desk/cases", None, "agv"),
        ("GET", "/api/desk/usage", days(), "av"),
        ("GET", "/api/desk/usage/csv", days(), "av"),
        ("GET", "/api/desk/review", days(), "av"),
        ("GET", f"/api/desk/review/{reply}", None, "av"),
        ("PUT", f"/api/desk/review/{reply}", {"reviewed": True}, "a"),
        ("GET", "/api/desk/templates/prompt", None, "agv"),
        ("GET", "/api/desk/templates/prompt/concise/versions", None, "agv"),
        ("PUT", version, written, "a"),
        ("POST", f"{version}/try", {"template": template}, "agv"),
        ("POST", f"{version}/remove", {"after": 1}, "a"),
        ("POST", f"{version}/restore", {"after": 2, "version": 1}, "a"),
        ("GET", "/api/canned", None, "agv"),
        ("POST", "/api/canned/hello/fill", {"values": {}}, "ag"),
        ("POST", "/api/prompts/support-desk/fill", {"values": {"company": "Acme"}}, "agv"),
        ("PUT", f"/api/messages/{reply}/feedback", thumb, "g"),
        ("GET", "/api/desk/audit", days(), "a"),
        ("GET", "/api/desk/audit/actions", None, "a"),
        ("GET", "/api/desk/audit/csv", days(), "a"),
        ("GET", f"/api/desk/people/{here.ids['gus']}/data", None, "a"),
    ]
    nobody = here.client()
    for method, path, given, allowed in doors:
        where = {"params": given} if method == "GET" else {"json": given}
        refused = await nobody.request(method, path, **where, headers={"Accept": "application/json"})
        assert refused.status_code in (303, 307, 401), f"nobody {method} {path}"
        for name in ("vera", "gus", "ada"):  # who may change it comes last
            answer = await here.clients[name].request(method, path, **where)
            if name[0] in allowed:
                assert answer.status_code in (200, 204), f"{name} {method} {path}: {answer.text}"
            else:
                assert answer.status_code in (403, 404), f"{name} {method} {path}: {answer.status_code}"
    await nobody.aclose()
    log = (await here.clients["ada"].get("/api/desk/audit/csv", params=days())).text
    assert "canned_reply_changed" in log
    assert SECRET_WORDS not in log


async def test_usage_and_its_table_agree(here: Desk) -> None:
    gus, ada = here.clients["gus"], here.clients["ada"]
    reply = await ask(gus, "one")
    await ask(ada, "two")
    await gus.put(f"/api/messages/{reply}/feedback", json={"rating": "up"})
    usage = (await ada.get("/api/desk/usage", params=days())).json()
    total = usage["total"]
    assert (total["messages"], total["users"], total["thumbs_up"], total["completion_tokens"]) == (2, 2, 1, 8)
    answer = await ada.get("/api/desk/usage/csv", params=days())
    assert "attachment" in answer.headers["content-disposition"]
    table = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row.pop("day") for row in table] == [day["name"] for day in usage["days"]]
    for row, day in zip(table, usage["days"], strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in day.items() if name != "name"}
    assert (await ada.get("/api/desk/usage", params={"first": "x", "last": "y"})).status_code == 422
    assert (await ada.get("/api/desk/usage", params={**days(), "zone": "No/Where"})).status_code == 422


async def test_a_file_for_spreadsheets_holds_no_formula(here: Desk) -> None:
    await here.accounts.records.rename(here.ids["ada"], '=HYPERLINK("https://evil.example")')
    log = (await here.clients["ada"].get("/api/desk/audit/csv", params=days())).text
    [line] = [row for row in csv.reader(io.StringIO(log)) if row[2] == "signed_in" and "HYPERLINK" in row[1]]
    assert line[1].startswith("'=")


async def test_a_persons_data_goes_and_the_rest_stays(here: Desk) -> None:
    gus, ada = here.clients["gus"], here.clients["ada"]
    reply = await ask(gus, SECRET_WORDS)
    await gus.put(f"/api/messages/{reply}/feedback", json={"rating": "down", "comment": SECRET_WORDS})
    stored = await gus.post("/v1/responses", json={"input": SECRET_WORDS})
    hers = await ask(ada, "mine")
    path = f"/api/desk/people/{here.ids['gus']}"
    preview = (await ada.get(f"{path}/data")).json()
    assert (preview["conversations"], preview["messages"], preview["replies"]) == (1, 1, 1)
    assert (preview["feedback"], preview["sessions"], preview["name"]) == (1, 1, "gus")
    assert (stored.status_code, preview["responses"]) == (200, 1)
    assert (await gus.get("/api/conversations")).json()["items"], "looking deletes nothing"
    assert (await ada.delete(path)).json() == preview
    assert (await gus.get("/api/conversations")).status_code == 401
    assert (await ada.get(f"{path}/data")).status_code == 404
    assert (await ada.delete(path)).status_code == 404
    review = (await ada.get("/api/desk/review", params=days())).json()
    assert review["items"] == []
    assert (await ada.put(f"/api/messages/{hers}/feedback", json={"rating": "up"})).status_code == 200
    log = (await ada.get("/api/desk/audit", params={**days(), "action": "person_deleted"})).json()
    [entry] = log["items"]
    assert (entry["actor"], entry["target"], entry["details"]["conversations"]) == ("ada", here.ids["gus"], 1)
    assert "gus" not in str(entry)
    refused = await ada.delete(f"/api/desk/people/{here.ids['ada']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")


async def test_a_reply_that_is_being_written_goes_with_its_person(here: Desk) -> None:

    gus, ada, gate = here.clients["gus"], here.clients["ada"], asyncio.Event()
    here.live.engine.say("never", "ending", gates={1: gate})
    turn = (await gus.post("/api/turns", json={"text": "go on for ever"})).json()
    quietly = await gus.post("/api/turns", json={"text": "quietly", "temporary": True})
    assert quietly.status_code == 201
    assert (await ada.delete(f"/api/desk/people/{here.ids['gus']}")).status_code == 200
    gate.set()
    assert here.live.engine.running == 0
    assert await here.services.temporary.find(quietly.json()["conversation_id"]) is None
    assert (await ada.get(f"/api/turns/{turn['turn_id']}/events")).status_code == 404
