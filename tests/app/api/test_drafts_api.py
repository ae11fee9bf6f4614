"""Drafts of replies to customers over HTTP: written, streamed, stopped, used, reviewed, exported and deleted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from app.domain.chat_settings import ChatSettings
from app.domain.ids import new_id
from app.domain.reply_drafts import MAX_UNUSED
from app.store.db.desk_models import ReplyDraft
from app.store.desk.draft_review import WITHHELD
from app.turns.drafts import CUT_OFF, MODEL_TOO_SMALL
from app.turns.sources import GONE
from app.turns.written_replies import NOTHING_FOUND
from engine import FinishReason, StructureKind
from testing.knowledge import ScriptedSearch, passage
from tests.app.api.secret_sources import CITED, SECRET
from tests.app.desk import Desk


async def begin(http: httpx.AsyncClient, **options: Any) -> str:
    """A conversation without messages; returns its address."""
    made = await http.post("/api/conversations", json={"text": "Where is my **parcel**?\n\nEve", **options})
    assert made.status_code == 201, made.text
    assert made.json()["title"] == "Where is my parcel?"
    return f"/api/conversations/{made.json()['conversation_id']}"


async def case(here: Desk) -> str:
    """Ben's case, whose drafts rest on his collection; returns its address."""
    address = await begin(here.clients["ben"])
    settings = ChatSettings(collections=("bens",))
    await here.services.conversations.save_settings(here.ids["ben"], address.rpartition("/")[2], settings)
    return address


async def stored(here: Desk) -> list[ReplyDraft]:
    query = select(ReplyDraft).order_by(ReplyDraft.id)
    return list(await here.services.database.read(lambda session: session.scalars(query).all()))


async def used(here: Desk, http: httpx.AsyncClient, address: str, final: str, *said: str) -> str:
    """Writes a draft and uses it as ``final``; returns its id."""
    here.live.engine.say(*(said or ("It is 4711 [1].",)))
    draft = (await http.post(f"{address}/draft", json={"text": "What is it?"})).json()
    answer = await http.put(f"{address}/drafts/{draft['id']}", json={"text": final, "used_as": "copied"})
    assert answer.status_code == 204, answer.text
    return str(draft["id"])


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for part in text.split("\n\n"):
        if part.startswith("event:"):
            name, _, data = part.partition("\ndata: ")
            found.append((name.removeprefix("event: "), json.loads(data)))
    return found


def today() -> dict[str, str]:
    day = str(datetime.now(UTC).date())
    return {"first": day, "last": day}


async def test_a_draft_is_written_from_message_notes_and_sources(here: Desk, search: ScriptedSearch) -> None:
    ben, engine = here.clients["ben"], here.live.engine
    address = await case(here)
    engine.say("Dear Eve, ", "it is 4711 [1]. ")
    first = await ben.post(f"{address}/draft", json={"text": "What is it?", "notes": "Her name is Eve."})
    assert first.status_code == 200, first.text
    text = "Dear Eve, it is 4711 [1]."
    assert first.json() | {"id": None} == {"id": None, "text": text, "citations": [CITED], "notice": None}
    messages, params = engine.calls[-1]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"].startswith("You write messages to customers")
    assert messages[1]["content"].endswith("What is it?\n\nNotes of a colleague:\n\nHer name is Eve.")
    assert SECRET in messages[1]["content"]
    assert params is not None
    assert params.structured is not None
    assert params.structured.kind is StructureKind.REGEX
    for change, word in (("shorter", "half as long"), ("friendlier", "warmer")):
        engine.say("4711 [1].", finish_reason=FinishReason.LENGTH)
        changed = await ben.post(f"{address}/draft", json={"text": "What is it?", "draft": text, "change": change})
        assert changed.json() | {"id": None} == {
            "id": None,
            "text": "4711 [1].",
            "citations": [CITED],
            "notice": CUT_OFF,
        }
        assert [message["content"] for message in engine.calls[-1][0][2:-1]] == [text]
        assert word in engine.calls[-1][0][-1]["content"]
    assert (await ben.get(address)).json()["messages"] == []
    rows = await stored(here)
    assert [(row.id, row.text, row.change) for row in rows] == [
        (first.json()["id"], text, None),
        (rows[1].id, "4711 [1].", "shorter"),
        (changed.json()["id"], "4711 [1].", "friendlier"),
    ]
    assert {row.message for row in rows} == {"What is it?"}


async def test_a_draft_that_cannot_be_written_says_why_and_is_not_stored(here: Desk, search: ScriptedSearch) -> None:
    ben, engine = here.clients["ben"], here.live.engine
    address, calls = f"{await case(here)}/draft", len(engine.calls)
    for body, status in (
        ({"text": " "}, 422),
        ({"text": "Hi", "change": "shorter"}, 422),
        ({"text": "Hi", "change": "longer"}, 422),
        ({"text": "x" * 200_001}, 422),
        ({"text": "Hi", "collections": [new_id()]}, 404),
    ):
        for stream in (False, True):
            assert (await ben.post(address, json={**body, "stream": stream})).status_code == status, body
    search.found = []
    assert (await ben.post(address, json={"text": "Hi"})).json()["notice"] == NOTHING_FOUND
    search.found = [passage(SECRET)]
    assert len(engine.calls) == calls
    assert await stored(here) == []


async def test_a_model_that_is_too_small_shows_the_passages(
    here: Desk, search: ScriptedSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ben, engine = here.clients["ben"], here.live.engine
    address = f"{await case(here)}/draft"
    engine._info = replace(engine.info, num_parameters=1000)
    too_small = {"id": None, "text": "", "citations": [CITED | {"listed": True}], "notice": MODEL_TOO_SMALL}
    assert (await ben.post(address, json={"text": "Hi"})).json() == too_small
    streamed = await ben.post(address, json={"text": "Hi", "stream": True})
    assert events_of(streamed.text) == [("end", too_small)]
    # Large enough for sources, but not for the prompt; and without sources.
    lower = here.services.settings.model_copy(update={"knowledge_min_parameters": 10})
    monkeypatch.setattr(here.services.sources, "_settings", lower)
    engine._info = replace(engine.info, num_parameters=135_000_000)
    small = (await ben.post(address, json={"text": "Hi"})).json()
    assert small["citations"] == [CITED | {"listed": True}]
    assert "it has 135 million parameters, and the prompt needs 1 billion" in small["notice"]
    small = (await ben.post(address, json={"text": "Hi", "collections": []})).json()
    assert small["citations"] == []
    assert small["notice"].endswith("or write the reply yourself.")
    assert await stored(here) == []
    # A prompt that asks for nothing, and a text of the user's own.
    for settings in ({"system_prompt_name": "concise"}, {"system_prompt": "Reply."}):
        engine.say("Hello.")
        assert (await ben.patch(address.removesuffix("/draft"), json={"settings": settings})).status_code == 204
        assert (await ben.post(address, json={"text": "Hi"})).json()["text"] == "Hello."


async def test_a_draft_is_streamed(here: Desk, search: ScriptedSearch) -> None:
    ben = here.clients["ben"]
    here.live.engine.say("It is ", "4711 [1].")
    answer = await ben.post(f"{await case(here)}/draft", json={"text": "What is it?", "stream": True})
    told = events_of(answer.text)
    assert [name for name, _ in told] == ["draft", "text", "text", "end"]
    assert told[0][1]["sources"] == [CITED]
    assert told[-1][1] == {"id": told[0][1]["id"], "text": "It is 4711 [1].", "citations": [CITED], "notice": None}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails_on_the_way_keeps_the_text_so_far(
    here: Desk, search: ScriptedSearch, stream: bool
) -> None:
    here.live.engine.say("It is ", "never said", fail_at=1)
    answer = await here.clients["ben"].post(f"{await case(here)}/draft", json={"text": "What?", "stream": stream})
    if stream:
        assert [name for name, _ in events_of(answer.text)] == ["draft", "text", "error"]
        assert events_of(answer.text)[-1][1]["status"] == 503
    else:
        assert answer.status_code == 503
    assert [row.text for row in await stored(here)] == ["It is"]


async def test_a_client_that_leaves_stops_the_draft_and_its_text_so_far_is_kept(here: Desk) -> None:
    ben, engine = here.clients["ben"], here.live.engine
    address = await begin(ben)
    gate = asyncio.Event()
    engine.say("It is ", "never said", gates={1: gate})
    body = {"text": "What?", "stream": True}
    async with ben.stream("POST", f"{address}/draft", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:") and "It is" in line:
                break
    kept: list[str] = []
    for _ in range(3000):
        kept = [row.text for row in await stored(here)]
        if kept == ["It is"]:
            break
        await asyncio.sleep(0.01)
    assert kept == ["It is"]
    gate.set()


async def test_drafts_asked_for_at_once_are_drafts_of_their_own(here: Desk, search: ScriptedSearch) -> None:
    ben, engine = here.clients["ben"], here.live.engine
    address = await case(here)
    gates = [asyncio.Event(), asyncio.Event()]
    for gate in gates:
        engine.say("It is ", "4711 [1].", gates={1: gate})
    body = {"text": "What is it?"}
    asked = [asyncio.create_task(ben.post(f"{address}/draft", json=body)) for _ in gates]
    for _ in range(3000):
        if len(await stored(here)) == len(gates):  # both are being written
            break
        await asyncio.sleep(0.01)
    for gate in gates:
        gate.set()
    drafts = [answer.json() for answer in await asyncio.gather(*asked)]
    assert [draft["text"] for draft in drafts] == ["It is 4711 [1]."] * 2
    rows = await stored(here)
    assert sorted(draft["id"] for draft in drafts) == [row.id for row in rows]
    assert [row.text for row in rows] == ["It is 4711 [1]."] * 2


async def test_a_case_that_the_model_cannot_read_is_refused(here: Desk, search: ScriptedSearch) -> None:
    address, said = await case(here), "word " * 30_000
    for body in ({"text": said}, {"text": "What?", "notes": said}, {"text": "?", "draft": said, "change": "shorter"}):
        for stream in (False, True):
            refused = await here.clients["ben"].post(f"{address}/draft", json={**body, "stream": stream})
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "context_too_long"), refused.text
            assert "Shorten it" in refused.json()["error"]["message"]
    assert await stored(here) == []


async def test_a_collection_that_goes_while_a_draft_is_written_ends_with_it(here: Desk, search: ScriptedSearch) -> None:
    ben, engine = here.clients["ben"], here.live.engine
    address = await case(here)
    gate = asyncio.Event()
    engine.say("It is ", "4711 [1].", gates={1: gate})
    async with ben.stream("POST", f"{address}/draft", json={"text": "What is it?", "stream": True}) as answer:
        text = ""
        async for line in answer.aiter_lines():
            text += f"{line}\n"
            if "It is" in line:
                search.members.pop("bens", None)
                gate.set()
    end = events_of(text)[-1]
    assert (end[0], end[1]["citations"]) == ("end", [CITED])
    used = {"text": "It is 4711 [1].", "used_as": "copied"}
    assert (await ben.put(f"{address}/drafts/{end[1]['id']}", json=used)).status_code == 204
    refused = await ben.post(f"{address}/draft", json={"text": "What is it?"})
    assert (refused.status_code, refused.json()["error"]["message"]) == (404, GONE)
    assert [row.final_text for row in await stored(here)] == ["It is 4711 [1]."]


async def test_limits_on_replies_hold_for_drafts(here: Desk) -> None:
    ben = here.clients["ben"]
    address = await begin(ben)
    here.services.admission._max_tokens = 1  # type: ignore[attr-defined]
    here.services.admission.record_tokens(here.ids["ben"], 5)
    for stream in (False, True):
        refused = await ben.post(f"{address}/draft", json={"text": "What?", "stream": stream})
        assert refused.status_code == 429
        assert "tokens for today" in refused.text
    assert await stored(here) == []


async def test_what_became_of_a_draft_is_reviewed_by_those_who_may_read_it(
    here: Desk, search: ScriptedSearch, caplog: pytest.LogCaptureFixture
) -> None:
    ben, ada, cyd = (here.clients[name] for name in ("ben", "ada", "cyd"))
    address = await case(here)
    first = await used(here, ben, address, "Dear Eve, it is 4711 [1].", "It is 4711 [1].")
    # Without sources of its own, but it may be a change of the first.
    here.live.engine.say("4711, dear.")
    body = {"text": "What?", "collections": [], "draft": "It is 4711.", "change": "friendlier"}
    second = (await ben.post(f"{address}/draft", json=body)).json()["id"]
    changed = {"text": "4711, dear.", "used_as": "inserted"}
    assert (await ben.put(f"{address}/drafts/{second}", json=changed)).status_code == 204
    here.live.engine.say("Not used.")
    await ben.post(f"{address}/draft", json={"text": "What?"})
    seen = (await ada.get("/api/desk/drafts", params=today())).json()["items"]
    assert [(item["id"], item["used_as"], item["change"]) for item in seen] == [
        (second, "inserted", "friendlier"),
        (first, "copied", None),
    ]
    assert seen[0]["changes"] == [{"kind": "same", "text": "4711, dear."}]
    assert seen[1]["changes"] == [
        {"kind": "removed", "text": "It"},
        {"kind": "added", "text": "Dear Eve, it"},
        {"kind": "same", "text": " is 4711 [1]."},
    ]
    assert (seen[1]["user"], seen[1]["message"], seen[1]["citations"]) == ("ben", "What is it?", [CITED])
    hidden = await cyd.get("/api/desk/drafts", params=today())
    assert [(item["withheld"], item["changes"], item["citations"]) for item in hidden.json()["items"]] == [
        (WITHHELD, [], [])
    ] * 2
    assert "4711" not in hidden.text
    assert (await ben.get("/api/desk/drafts", params=today())).status_code == 403  # an agent
    page = (await ada.get("/api/desk/drafts", params=today() | {"limit": "1"})).json()
    rest = (await ada.get("/api/desk/drafts", params=today() | {"cursor": page["next_cursor"]})).json()
    assert [item["id"] for item in (*page["items"], *rest["items"])] == [second, first]
    assert rest["next_cursor"] is None
    assert (await ada.get("/api/desk/drafts", params=today() | {"cursor": "x"})).status_code == 422
    assert "4711" not in caplog.text


async def test_a_review_of_a_reply_shows_the_drafts_of_its_conversation(here: Desk, search: ScriptedSearch) -> None:
    ben = here.clients["ben"]
    address = await case(here)
    await used(here, ben, address, "4711 [1].")
    here.live.engine.say("Pasted: 4711.")
    sent = await ben.post(
        "/api/turns", json={"text": "And?", "conversation_id": address.rpartition("/")[2], "collections": []}
    )
    assert sent.status_code == 201, sent.text
    await ben.get(f"/api/turns/{sent.json()['turn_id']}/events")
    message = sent.json()["message_id"]
    assert (await ben.put(f"/api/messages/{message}/feedback", json={"rating": "down"})).status_code == 200
    shown = (await here.clients["ada"].get(f"/api/desk/review/{message}")).json()
    assert [draft["message"] for draft in shown["drafts"]] == ["What is it?"]
    # The reply may repeat what the draft took from documents.
    hidden = await here.clients["cyd"].get(f"/api/desk/review/{message}")
    assert hidden.json()["drafts"][0]["withheld"] == WITHHELD
    assert "4711" not in hidden.text


async def test_wrong_uses_change_nothing(here: Desk, search: ScriptedSearch) -> None:
    ben, ada, cyd = (here.clients[name] for name in ("ben", "ada", "cyd"))
    address, other = await case(here), await begin(ben)
    draft = await used(here, ben, address, "4711 [1].")
    for http, path, body, status in (
        (ben, f"{address}/drafts/{draft}", {"text": " ", "used_as": "copied"}, 422),
        (ben, f"{address}/drafts/{draft}", {"text": "x" * 200_001, "used_as": "copied"}, 422),
        (ben, f"{address}/drafts/{draft}", {"text": "x", "used_as": "sent"}, 422),
        (ben, f"{address}/drafts/{new_id()}", {"text": "x", "used_as": "copied"}, 404),
        (ben, f"{address}/drafts/x", {"text": "x", "used_as": "copied"}, 404),
        (ben, f"{other}/drafts/{draft}", {"text": "x", "used_as": "copied"}, 404),
        (ada, f"{address}/drafts/{draft}", {"text": "x", "used_as": "copied"}, 404),
        (cyd, f"{address}/drafts/{draft}", {"text": "x", "used_as": "copied"}, 403),
    ):
        assert (await http.put(path, json=body)).status_code == status, (path, body)
    for http, status in ((ada, 404), (cyd, 403)):
        assert (await http.post(f"{address}/draft", json={"text": "Hi"})).status_code == status
    assert (await cyd.post("/api/conversations", json={})).status_code == 403
    async with here.client() as nobody:
        assert (await nobody.post(f"{address}/draft", json={"text": "Hi"})).status_code == 401
    assert [row.final_text for row in await stored(here)] == ["4711 [1]."]


async def test_unused_drafts_make_room_and_used_ones_stay(here: Desk) -> None:
    ben = here.clients["ben"]
    address = await begin(ben)
    kept = await used(here, ben, address, "Used.", "Written.")
    for number in range(MAX_UNUSED + 3):
        here.live.engine.say(f"Draft {number}.")
        assert (await ben.post(f"{address}/draft", json={"text": "What?"})).status_code == 200
    rows = await stored(here)
    assert rows[0].id == kept
    assert [row.text for row in rows[1:]] == [f"Draft {number}." for number in range(3, MAX_UNUSED + 3)]


async def test_a_temporary_chat_keeps_its_drafts_in_memory(here: Desk) -> None:
    ben = here.clients["ben"]
    address = await begin(ben, temporary=True)
    await used(here, ben, address, "4711.")
    assert await stored(here) == []
    assert (await ben.get("/api/conversations")).json()["items"] == []
    assert (await here.clients["ada"].get("/api/desk/drafts", params=today())).json()["items"] == []


async def test_an_export_carries_drafts_and_an_import_brings_them_back(here: Desk, search: ScriptedSearch) -> None:
    ben, ada = here.clients["ben"], here.clients["ada"]
    address = await case(here)
    await used(here, ben, address, "Dear Eve, 4711 [1].")
    here.live.engine.say("Not used.")
    await ben.post(f"{address}/draft", json={"text": "What?"})
    exported = (await ben.get(f"{address}/export", params={"format": "json"})).json()
    drafts = exported["conversations"][0]["drafts"]
    assert [draft["text"] for draft in drafts] == ["It is 4711 [1].", "Not used."]
    for http in (ada, ben):  # as another user, and where its ids are taken
        if http is ben:
            assert (await ben.delete(address)).status_code == 204
        imported = await http.post(
            "/api/import", content=json.dumps(exported), headers={"Content-Type": "application/octet-stream"}
        )
        assert imported.json() == {"imported": 1, "already_there": 0}, imported.text
    by_whom = {item["user"] for item in (await ada.get("/api/desk/drafts", params=today())).json()["items"]}
    assert by_whom == {"ada", "ben"}
    drafts[0]["used_at"] = None
    broken = await ben.post(
        "/api/import", content=json.dumps(exported), headers={"Content-Type": "application/octet-stream"}
    )
    assert broken.status_code == 422
    assert "belong together" in broken.text


async def test_drafts_go_with_their_conversation_and_their_user(here: Desk, search: ScriptedSearch) -> None:
    ben, ada = here.clients["ben"], here.clients["ada"]
    first, second = await case(here), await case(here)
    for address in (first, second):
        await used(here, ben, address, "4711 [1].")
    before = (await ben.get("/api/account/storage")).json()["used_bytes"]
    assert (await ben.delete(first)).status_code == 204
    assert before - (await ben.get("/api/account/storage")).json()["used_bytes"] > len(SECRET)
    assert len(await stored(here)) == 1
    assert (await ada.get(f"/api/desk/people/{here.ids['ben']}/data")).json()["drafts"] == 1
    assert (await ada.delete(f"/api/desk/people/{here.ids['ben']}")).status_code in (200, 204)
    assert await stored(here) == []
