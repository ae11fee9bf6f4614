"""Summaries and articles of inboxes' cases: who may ask, what the model is given, and what is saved when it fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.cases.case_reading import MERGED, NOT_RESOLVED
from app.domain.roles import UserRole
from app.store.cases import case_details
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID
from app.turns import articles, cases, summaries
from engine import EngineError
from testing.waiting import eventually
from tests.app.api.test_support_cases_api import NOWHERE, Support, age_resolution, new_visitor
from tests.app.desk import Desk

NOTE = "Her card number ends in 4711."
ARTICLE = "# A cold kettle\n\n## Question\n\nWhy?\n\n## Solution\n\nDescale it."


@pytest.fixture
async def support(here: Desk) -> Support:
    """Ada is the admin; Ben is an agent of the inbox and Cyd its viewer; Dan is an agent of no inbox.

    All but Dan may edit Knowledge. The case has a question, a note, and a reply.
    """
    here.live.engine._info = replace(here.live.engine.info, num_parameters=3_000_000_000)
    await here.add("dan", UserRole.AGENT)
    ada = here.clients["ada"]
    inbox = (await ada.post("/api/inboxes", json={"name": "Website", "bot": False})).json()
    for name in ("ben", "cyd"):
        assert (await ada.put(f"/api/inboxes/{inbox['id']}/members/{here.ids[name]}")).status_code == 204
        editor = f"/api/kb/collections/{KNOWLEDGE_COLLECTION_ID}/members/{here.ids[name]}"
        assert (await ada.put(editor, json={"may_edit": True})).status_code == 204
    found = Support(here, inbox, await new_visitor(here, inbox["id"]))
    found.case_id = await found.write("Why is my kettle cold?")
    await say(found, "notes", NOTE)
    await say(found, "messages", "Descale it.")
    return found


async def say(support: Support, door: str, text: str) -> None:
    said = await support.clients["ben"].post(f"/api/cases/{support.case_id}/{door}", json={"text": text})
    assert said.status_code == 200, said.text


async def resolve(support: Support) -> None:
    assert (await support.clients["ben"].post(f"/api/cases/{support.case_id}/resolve", json={})).status_code == 200


async def ask(client: httpx.AsyncClient, support: Support, door: str, **body: Any) -> httpx.Response:
    return await client.post(f"/api/cases/{support.case_id}/{door}", json=body)


async def proposed(support: Support) -> list[dict[str, Any]]:
    listed = await support.clients["ada"].get("/api/kb/articles", params={"collection": KNOWLEDGE_COLLECTION_ID})
    found: list[dict[str, Any]] = listed.json()["articles"]
    return found


async def test_readers_of_a_case_get_its_summary_and_agents_its_article(support: Support) -> None:
    engine, clients = support.desk.live.engine, support.clients
    await resolve(support)
    for name in ("ada", "ben", "cyd"):
        engine.say("It is cold [1].")
        assert (await ask(clients[name], support, "summary")).status_code == 200, name
    for name in ("ada", "ben"):
        engine.say(ARTICLE)
        made = await ask(clients[name], support, "article")
        assert made.status_code == 201, made.text
        assert made.json()["article"]["author"] == name
    calls, saved = len(engine.calls), await proposed(support)
    assert len(saved) == 2
    async with support.desk.client() as signed_out:
        refused = [("summary", clients["dan"], 404), ("summary", signed_out, 401)]
        refused += [("article", clients["dan"], 404), ("article", signed_out, 401), ("article", clients["cyd"], 403)]
        for door, client, status in refused:
            assert (await ask(client, support, door)).status_code == status, door
    other = support.case_id
    for support.case_id in (NOWHERE, "nonsense"):
        for door in ("summary", "article"):
            assert (await ask(clients["ben"], support, door)).status_code == 404
    own = f"/api/conversations/{other}"  # the inbox's, and no agent's
    assert [(await clients["ben"].post(f"{own}/{door}", json={})).status_code for door in ("summary", "article")] == [
        404
    ] * 2
    assert len(engine.calls) == calls
    assert await proposed(support) == saved


async def test_a_summary_rests_on_messages_and_notes_and_an_article_on_no_note(support: Support) -> None:
    ben, engine = support.clients["ben"], support.desk.live.engine
    await support.desk.services.cases.contacts.say(support.visitor.contact.id, "We're closed right now.")
    shown = (await ben.get(f"/api/cases/{support.case_id}")).json()
    question, note, reply = (message["id"] for message in shown["messages"][:3])
    engine.say("It is cold [1]. The card is known [2], and descaling was proposed [3]. There is no [4].")
    summary = (await ask(ben, support, "summary")).json()
    linked = [(one["number"], one["message_id"], one["role"], one["internal"]) for one in summary["messages"]]
    assert linked == [(1, question, "user", False), (2, note, "assistant", True), (3, reply, "assistant", False)]
    assert (summary["total"], summary["notice"]) == (3, None)  # the system's sentence is no part of the talk
    prompt = engine.calls[-1][0][1]["content"]
    assert f'<message number="2" from="note">\n{NOTE}\n</message>' in prompt
    assert prompt.endswith(summaries.ABOUT_NOTES)
    assert "closed right now" not in prompt

    await resolve(support)
    engine.say(ARTICLE)
    article = (await ask(ben, support, "article")).json()["article"]
    assert (article["title"], article["collection"]) == ("A cold kettle", KNOWLEDGE_COLLECTION_ID)
    prompt = "\n".join(message["content"] for message in engine.calls[-1][0])
    assert "Descale it." in prompt
    assert "4711" not in prompt
    assert "note" not in prompt.partition("<case>")[2]
    after = (await ben.get(f"/api/cases/{support.case_id}")).json()
    assert after["messages"] == shown["messages"]  # nothing is written in the case


async def test_only_a_resolved_case_becomes_an_article(support: Support) -> None:
    ben, engine = support.clients["ben"], support.desk.live.engine
    refused = await ask(ben, support, "article")
    assert (refused.status_code, refused.json()["error"]["message"]) == (409, NOT_RESOLVED)
    await resolve(support)
    for body, status in (({"collection": "nonsense"}, 404), ({"collection": 1}, 422), ({"internal": True}, 422)):
        assert (await ask(ben, support, "article", **body)).status_code == status
    gone = f"/api/kb/collections/{KNOWLEDGE_COLLECTION_ID}/members/{support.desk.ids['ben']}"
    assert (await support.clients["ada"].put(gone, json={"may_edit": False})).status_code == 204
    assert (await ask(ben, support, "article")).status_code == 403
    assert engine.calls == []
    assert await proposed(support) == []


async def test_a_merged_case_is_told_where_it_went_on(support: Support) -> None:
    ben, engine, first = support.clients["ben"], support.desk.live.engine, support.case_id
    await resolve(support)
    await age_resolution(support, first)
    second = support.case_id = await support.write("It is cold again.")
    assert second != first
    assert (await ben.post(f"/api/cases/{first}/merge", json={"into": second})).status_code == 200
    await resolve(support)
    engine.say("It was cold twice [1][4].")
    summary = (await ask(ben, support, "summary")).json()
    assert [one["excerpt"] for one in summary["messages"]] == ["Why is my kettle cold?", "It is cold again."]
    support.case_id = first
    refused = await ask(ben, support, "article")
    assert (refused.status_code, refused.json()["error"]["message"]) == (409, MERGED)


async def test_a_long_case_is_read_page_by_page(support: Support, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_details, "SHOWN_MESSAGES", 2)
    monkeypatch.setattr(cases, "MAX_MESSAGES", 5)
    ben, engine = support.clients["ben"], support.desk.live.engine
    for number in range(4):
        await support.write(f"Question {number}?")
    engine.say("The card is known [1], and descaling was proposed [2].")
    summary = (await ask(ben, support, "summary")).json()
    assert [one["excerpt"] for one in summary["messages"]] == [NOTE, "Descale it."]
    assert (summary["total"], summary["has_earlier"]) == (6, True)


async def test_a_model_that_is_too_small_says_so(support: Support) -> None:
    ben, engine = support.clients["ben"], support.desk.live.engine
    engine._info = replace(engine.info, num_parameters=1000)
    await say(support, "notes", NOTE)
    await resolve(support)
    summary = (await ask(ben, support, "summary")).json()
    assert (summary["text"], summary["notice"]) == ("", summaries.MODEL_TOO_SMALL)
    assert [one["internal"] for one in summary["messages"]] == [False, True, False, True]
    made = (await ask(ben, support, "article")).json()
    assert made["notice"] == articles.MODEL_TOO_SMALL
    assert made["article"]["title"] == "Why is my kettle cold?"
    assert made["article"]["body"] == "## Question\n\nWhy is my kettle cold?\n\n## Solution\n\nDescale it."
    assert engine.calls == []


async def test_what_has_no_text_or_no_reply_is_refused(support: Support) -> None:
    ben, engine = support.clients["ben"], support.desk.live.engine
    support.case_id = await (await support.another()).write("Hello?")
    await say(support, "notes", "Nobody has answered: spam.")  # a note is no reply
    await resolve(support)
    refused = await ask(ben, support, "article")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_input")
    assert "no reply yet" in refused.json()["error"]["message"]
    assert engine.calls == []


async def test_a_model_that_fails_midway_leaves_nothing(support: Support) -> None:
    ben, engine = support.clients["ben"], support.desk.live.engine
    await resolve(support)
    for door in ("summary", "article"):
        engine.say("# Half", "way", fail_at=1, error=EngineError("The engine ran out of memory."))
        failed = await ask(ben, support, door)
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_unavailable")
    engine.ready = False
    for door in ("summary", "article"):
        assert (await ask(ben, support, door)).status_code == 503
    assert await proposed(support) == []


@pytest.mark.parametrize("door", ["summary", "article"])
async def test_a_client_that_leaves_stops_the_model_and_nothing_is_saved(support: Support, door: str) -> None:
    ben, engine = support.clients["ben"], support.desk.live.engine
    await resolve(support)
    engine.say(ARTICLE, "never said", gates={1: asyncio.Event()})
    asking = asyncio.create_task(ask(ben, support, door))
    await engine.started.wait()
    asking.cancel()
    await eventually(lambda: engine.running == 0)
    assert engine.aborted == 1
    assert await proposed(support) == []


@pytest.mark.parametrize("door", ["summary", "article", "draft"])
async def test_a_user_who_is_disabled_meanwhile_gets_nothing(support: Support, door: str) -> None:
    ben, engine = support.clients["ben"], support.desk.live.engine
    await resolve(support)
    engine.say(ARTICLE, "never said", gates={1: asyncio.Event()})
    asking = asyncio.create_task(ask(ben, support, door, **({"text": "Why?"} if door == "draft" else {})))
    await engine.started.wait()
    ended = {"disabled": True}
    assert (await support.clients["ada"].patch(f"/api/people/{support.desk.ids['ben']}", json=ended)).status_code == 204
    refused = await asking
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "not_signed_in")
    assert (engine.running, engine.aborted) == (0, 1)
    assert await proposed(support) == []
