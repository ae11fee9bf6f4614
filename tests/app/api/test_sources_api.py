"""Sources over HTTP with accounts: citations in events, messages and exports, and other users."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from app.store.desk.review import WITHHELD
from testing.knowledge import ScriptedSearch
from tests.app.api.secret_sources import CITED, SECRET
from tests.app.api.test_tool_doors import events
from tests.app.desk import Desk


async def ask(here: Desk, **options: Any) -> dict[str, Any]:
    """Ben's question, which is answered from his collection."""
    here.live.engine.say("It is 4711 [1].")
    sent = await here.clients["ben"].post("/api/turns", json={"text": "Code?", "collections": ["bens"], **options})
    assert sent.status_code == 201, sent.text
    await events(here.clients["ben"], sent.json()["turn_id"])
    started: dict[str, Any] = sent.json()
    return started


async def test_citations_come_in_events_and_messages(here: Desk, search: ScriptedSearch) -> None:
    ben = here.clients["ben"]
    ref = await ask(here)
    told = await events(ben, ref["turn_id"])
    assert [name for name, _ in told] == ["text", "citations", "end"]
    assert told[1][1] == {"citations": [CITED]}
    shown = (await ben.get(f"/api/conversations/{ref['conversation_id']}")).json()
    assert shown["settings"]["collections"] == ["bens"]
    assert [message["citations"] for message in shown["messages"]] == [[], [CITED]]
    exported = await ben.get(f"/api/conversations/{ref['conversation_id']}/export", params={"format": "markdown"})
    assert "[^1]: Returns, version 1: The code of the vault is 4711" in exported.text
    for path, body in (("edit", {"text": "Again?"}), ("regenerate", {})):
        message = ref["user_message_id"]
        sent = await ben.post(f"/api/messages/{message}/{path}", json={**body, "collections": []})
        assert sent.status_code == 201, sent.text
        await events(ben, sent.json()["turn_id"])
    assert len(search.queries) == 1


async def test_nothing_reaches_a_user_without_the_right(
    here: Desk, search: ScriptedSearch, caplog: pytest.LogCaptureFixture
) -> None:
    ref = await ask(here)
    ada, cyd = here.clients["ada"], here.clients["cyd"]
    rated = await here.clients["ben"].put(f"/api/messages/{ref['message_id']}/feedback", json={"rating": "down"})
    assert rated.status_code == 200  # so that it is to be reviewed
    conversation, today = ref["conversation_id"], datetime.now(UTC).date()
    for options in ({"collections": ["bens"]}, {"settings": {"collections": ["bens"]}}):
        refused = await ada.post("/api/turns", json={"text": "Code?", **options})
        assert refused.status_code == 404
    assert (await ada.get("/api/conversations")).json()["items"] == []
    for other in (ada, cyd):
        for path in (
            f"/api/conversations/{conversation}",
            f"/api/conversations/{conversation}/export",
            f"/api/turns/{ref['turn_id']}/events",
        ):
            assert (await other.get(path)).status_code == 404
        # The desk's review never shows the passage; it shows the reply to an admin, who may read all documents.
        for reviewed in (
            await other.get(f"/api/desk/review/{ref['message_id']}"),
            await other.get("/api/desk/review", params={"first": str(today), "last": str(today)}),
        ):
            assert reviewed.status_code == 200
            assert ref["message_id"] in reviewed.text
            assert SECRET not in reviewed.text
            assert ("It is 4711 [1]." in reviewed.text) == (other is ada)
            assert (WITHHELD in reviewed.text) == (other is cyd)
        assert SECRET not in (await other.get("/api/export")).text
    assert SECRET not in caplog.text


async def test_who_sees_questions_that_found_nothing(here: Desk, search: ScriptedSearch) -> None:
    ada, ben, cyd = (here.clients[name] for name in ("ada", "ben", "cyd"))
    search.found = []
    started = await ask(here)
    asked = await ada.get("/api/desk/gaps")
    assert asked.status_code == 200, asked.text
    [group] = asked.json()["groups"]
    assert (group["question"], group["count"], group["collections"]) == ("Code?", 1, ["bens"])
    assert group["message_ids"] == [started["message_id"]]
    assert (group["questions"][0]["own"], group["questions"][0]["in_review"]) == (False, False)
    assert (await cyd.get("/api/desk/gaps")).json()["groups"] == []  # may not use the collection
    mark = {"message_ids": group["message_ids"], "done": True}
    for http, read, write in ((ada, 200, 204), (ben, 403, 403), (cyd, 200, 403), (here.client(), 401, 401)):
        assert (await http.get("/api/desk/gaps?state=done")).status_code == read
        assert (await http.put("/api/desk/gaps", json=mark)).status_code == write
    assert (await ada.get("/api/desk/gaps")).json()["groups"] == []
    for body, status in (
        ({**mark, "message_ids": []}, 422),
        ({**mark, "message_ids": ["x"]}, 404),
        ({**mark, "message_ids": ["x"] * 2001}, 422),
        ({"message_ids": ["x"]}, 422),
    ):
        assert (await ada.put("/api/desk/gaps", json=body)).status_code == status
    assert (await ada.get("/api/desk/gaps?state=odd")).status_code == 422
