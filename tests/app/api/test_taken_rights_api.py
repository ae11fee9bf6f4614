"""A right that is taken away, and a document that is removed, reach the chats that have used them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.cases.views import CaseMessageData
from app.domain.case_views import CaseMessage
from app.domain.cases import AuthorKind
from app.domain.citations import citations_of
from app.domain.conversation_document import ConversationDocument
from app.domain.knowledge import WITHHELD, NewChunk
from app.domain.listings import PASSAGES_FOUND
from app.domain.roles import UserRole
from app.store.knowledge.reading import ReadingQueue
from engine import FinishReason
from testing.documents import save_chunks
from testing.knowledge import passage
from tests.app.api.test_tool_doors import events
from tests.app.desk import Desk, desk

PARTS = ("The vault opens with 4711.", "The vault opens after nine.")
TEXT = " ".join(PARTS)
TURNS = "/api/turns"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Desk]:
    """A desk with a collection that its admin, two agents and a viewer may use, and a model that is large enough."""
    async with desk(tmp_path / "data", gradio=False) as opened:
        await opened.services.knowledge.ingest.close()  # it would claim the tests' documents
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("eve", UserRole.AGENT)):
            await opened.add(name, role)
        await opened.add("dan", UserRole.AGENT)
        ada, engine = opened.clients["ada"], opened.live.engine
        engine._info = replace(engine.info, num_parameters=3_000_000_000)
        opened.ids["collection"] = (await ada.post("/api/kb/collections", json={"name": "Vault"})).json()["id"]
        for name in ("ben", "eve"):
            assert (await ada.put(member(opened, name), json={"may_edit": False})).status_code == 204
        sent = await ada.post(
            "/api/kb/documents",
            files={"file": ("vault.md", TEXT.encode())},
            data={"collection": opened.ids["collection"]},
        )
        opened.ids["document"] = sent.json()["id"]
        queue, length = ReadingQueue(opened.services.database, "test"), len(PARTS[0])
        job = await queue.claim_next()
        assert job is not None
        chunks = [
            NewChunk(heading="Vault", start=0, end=length, tokens=6),
            NewChunk(heading="Vault", start=length + 1, end=len(TEXT), tokens=6),
        ]
        assert await save_chunks(queue, job, "Vault rules", TEXT, chunks)
        yield opened


def member(here: Desk, name: str) -> str:
    return f"/api/kb/collections/{here.ids['collection']}/members/{here.ids[name]}"


async def take(here: Desk, name: str) -> None:
    assert (await here.clients["ada"].delete(member(here, name))).status_code == 204


async def send(here: Desk, name: str, text: str = "How does the vault open?", **given: Any) -> dict[str, Any]:
    client = here.clients[name]
    sent = await client.post(TURNS, json={"text": text, **given})
    assert sent.status_code == 201, sent.text
    await events(client, sent.json()["turn_id"])
    started: dict[str, Any] = sent.json()
    return started


async def ask(here: Desk, name: str, **given: Any) -> dict[str, Any]:
    """A question that both passages answer; the reply cites the first of them."""
    here.live.engine.say("So [1].")
    started = await send(here, name, collections=[here.ids["collection"]], **given)
    assert told(last_prompt(here)) == {*PARTS}
    return started


def last_prompt(here: Desk) -> str:
    return "\n".join(message["content"] for message in here.live.engine.calls[-1][0])


def told(text: str) -> set[str]:
    """The passages that stand in a text."""
    return {part for part in PARTS if part in text}


async def prompt_of(client: httpx.AsyncClient, message_id: str) -> str:
    shown = await client.get(f"/api/messages/{message_id}/prompt")
    assert shown.status_code == 200, shown.text
    return " ".join(piece["text"] for piece in shown.json()["pieces"])


async def reading(here: Desk, name: str, turn: dict[str, Any]) -> dict[str, str]:
    """All that shows a user their own conversation, by its name."""
    client, conversation = here.clients[name], f"/api/conversations/{turn['conversation_id']}"
    message = f"/api/messages/{turn['message_id']}"
    paths = {
        "page": conversation,
        "versions": f"{message}/versions",
        "events": f"{TURNS}/{turn['turn_id']}/events",
        "document": f"{conversation}/export?format=json",
        "markdown": f"{conversation}/export?format=markdown",
        "all": "/api/export?format=json",
    }
    shown: dict[str, str] = {}
    for what, path in paths.items():
        answer = await client.get(path)
        assert answer.status_code == 200, f"{what}: {answer.text}"
        shown[what] = answer.text.replace("\\", "")
    return shown


async def citation(here: Desk, name: str, turn: dict[str, Any]) -> dict[str, Any]:
    page = (await here.clients[name].get(f"/api/conversations/{turn['conversation_id']}")).json()
    (cited,) = next(one["citations"] for one in page["messages"] if one["id"] == turn["message_id"])
    found: dict[str, Any] = cited
    return found


async def test_a_later_prompt_holds_past_passages_only_as_long_as_the_right(here: Desk) -> None:
    turns = {name: await ask(here, name) for name in ("ada", "ben", "eve")}
    for name, turn in turns.items():
        follow = {"conversation_id": turn["conversation_id"], "collections": []}
        await send(here, name, "And then?", **follow)
        assert told(last_prompt(here)) == {*PARTS}, "the right is still there"
        assert "4711" in await prompt_of(here.clients[name], turn["message_id"])
    await take(here, "ben")
    for name, turn in turns.items():
        client, left = here.clients[name], set() if name == "ben" else {*PARTS}
        follow = {"conversation_id": turn["conversation_id"], "collections": []}
        later = await send(here, name, "And today?", **follow)
        assert told(last_prompt(here)) == left, name
        assert "So [1]." in last_prompt(here), "what was answered stays"
        for message_id in (turn["message_id"], later["message_id"]):
            assert ("4711" in await prompt_of(client, message_id)) == bool(left)
        coming = {"conversation_id": turn["conversation_id"], "text": "Hm?"}
        shown = await client.post("/api/context/prompt", json=coming)
        assert shown.status_code == 200, shown.text
        assert ("4711" in shown.text) == bool(left)
        again = await client.post(f"/api/messages/{later['message_id']}/regenerate", json={})
        await events(client, again.json()["turn_id"])
        assert told(last_prompt(here)) == left, name
    assert (await here.clients["ada"].put(member(here, "ben"), json={"may_edit": False})).status_code == 204
    turn = turns["ben"]
    await send(here, "ben", "Once more?", conversation_id=turn["conversation_id"], collections=[])
    assert told(last_prompt(here)) == {*PARTS}, "the right is back, and what was stored is as it was"


async def test_a_temporary_chat_loses_the_passages_as_well(here: Desk) -> None:
    turn = await ask(here, "ben", temporary=True)
    assert (await citation(here, "ben", turn))["text"] in PARTS
    await take(here, "ben")
    await send(here, "ben", "And then?", conversation_id=turn["conversation_id"], collections=[])
    assert told(last_prompt(here)) == set()
    assert (await citation(here, "ben", turn))["text"] == ""


async def test_a_reply_that_goes_on_is_given_no_passage_without_the_right(here: Desk) -> None:
    engine = here.live.engine
    engine.say("So [1]", finish_reason=FinishReason.LENGTH)
    turn = await send(here, "ben", collections=[here.ids["collection"]])
    await take(here, "ben")
    engine.say(" and [2].")
    ben = here.clients["ben"]
    resumed = await ben.post(f"/api/messages/{turn['message_id']}/continue", json={})
    assert resumed.status_code == 201, resumed.text
    assert told(str(await events(ben, turn["turn_id"]))) == set()
    assert told(last_prompt(here)) == set()
    assert (await here.clients["ada"].put(member(here, "ben"), json={"may_edit": False})).status_code == 204
    page = (await ben.get(f"/api/conversations/{turn['conversation_id']}")).json()
    assert {one["text"] for one in page["messages"][-1]["citations"]} == {*PARTS}


async def test_what_a_reply_quotes_is_shown_only_as_long_as_the_right(here: Desk) -> None:
    turns = {name: await ask(here, name) for name in ("ada", "ben", "eve")}
    for name, turn in turns.items():
        cited = await citation(here, name, turn)
        assert (cited["number"], cited["title"], cited["withheld"]) == (1, "Vault rules", None)
        for what, text in (await reading(here, name, turn)).items():
            assert told(text) == {cited["text"]}, f"{what}: what is not cited stays inside"
    await take(here, "ben")
    changed = await here.clients["ada"].patch(f"/api/people/{here.ids['eve']}", json={"role": "viewer"})
    assert changed.status_code == 204, changed.text
    await take(here, "eve")
    for name in ("ben", "eve"):
        cited = await citation(here, name, turns[name])
        assert (cited["number"], cited["title"], cited["text"], cited["withheld"]) == (1, "Vault rules", "", WITHHELD)
        for what, text in (await reading(here, name, turns[name])).items():
            assert told(text) == set(), what
            assert "So [" in text
    for what, text in (await reading(here, "ada", turns["ada"])).items():
        assert len(told(text)) == 1, what
    for other, status in ((here.clients["dan"], 404), (here.client(), 401)):
        for path in ("", "/export?format=json"):
            answer = await other.get(f"/api/conversations/{turns['ada']['conversation_id']}{path}")
            assert answer.status_code == status
            assert told(answer.text) == set()


async def test_a_listing_by_a_small_model_holds_no_word_of_a_passage(here: Desk) -> None:
    engine, ben, dan = here.live.engine, here.clients["ben"], here.clients["dan"]
    large, engine._info = engine.info, replace(engine.info, num_parameters=135_000_000)
    turn = await send(here, "ben", collections=[here.ids["collection"]])
    assert engine.calls == []
    for what, text in (await reading(here, "ben", turn)).items():
        assert told(text) == {*PARTS}, f"{what}: the citations have the passages"
    exported = (await ben.get(f"/api/conversations/{turn['conversation_id']}/export?format=json")).content
    await take(here, "ben")
    for what, text in (await reading(here, "ben", turn)).items():
        assert told(text) == set(), what
        assert "Vault rules" in text, what
    page = (await ben.get(f"/api/conversations/{turn['conversation_id']}")).json()["messages"][-1]
    assert page["content"] == f"{PASSAGES_FOUND}\n\n- **Vault rules** [1] [2]"
    assert [(one["listed"], one["withheld"]) for one in page["citations"]] == [(True, WITHHELD)] * 2
    assert (await ben.get("/api/conversations", params={"query": "4711"})).json()["items"] == []
    [hit] = (await ben.get("/api/conversations", params={"query": "Vault rules"})).json()["items"]
    assert hit["message_id"] == turn["message_id"]
    engine._info = large
    await send(here, "ben", "And then?", conversation_id=turn["conversation_id"], collections=[])
    assert told(last_prompt(here)) == set()
    assert PASSAGES_FOUND in last_prompt(here)
    # An exported listing is one again where it is imported, within the rights of whoever reads it there.
    kind = {"Content-Type": "application/octet-stream"}
    assert (await dan.post("/api/import", content=exported, headers=kind)).json()["imported"] == 1
    [copy] = (await dan.get("/api/conversations")).json()["items"]
    cited = (await dan.get(f"/api/conversations/{copy['id']}")).json()["messages"][-1]["citations"]
    assert [(one["listed"], one["text"], one["withheld"]) for one in cited] == [(True, "", WITHHELD)] * 2


async def test_of_a_removed_document_answers_keep_their_quotation_and_prompts_nothing(here: Desk) -> None:
    turns = {name: await ask(here, name) for name in ("ada", "ben")}
    cited = {name: await citation(here, name, turn) for name, turn in turns.items()}
    removed = await here.clients["ada"].delete(f"/api/kb/documents/{here.ids['document']}")
    assert removed.status_code == 204
    for name, turn in turns.items():
        await send(here, name, "And then?", conversation_id=turn["conversation_id"], collections=[])
        assert told(last_prompt(here)) == set(), name
        assert told(await prompt_of(here.clients[name], turn["message_id"])) == set()
        assert await citation(here, name, turn) == cited[name]
        for what, text in (await reading(here, name, turn)).items():
            assert told(text) == {cited[name]["text"]}, what


async def test_an_export_keeps_the_places_of_what_is_cited(here: Desk) -> None:
    here.live.engine.say("So [2].")
    turn = await send(here, "ben", collections=[here.ids["collection"]])
    records = here.services.transfers.records
    document = await records.read(here.ids["ben"], turn["conversation_id"])
    first, second = document.messages[-1].sources
    assert (first.title, first.heading, first.text) == ("", "", "")
    assert (second.title, second.text) == ("Vault rules", (await citation(here, "ben", turn))["text"])
    copy = ConversationDocument.model_validate_json(document.model_dump_json())
    assert (await records.add(here.ids["dan"], [copy])).imported == 1
    (conversation,) = (await here.clients["dan"].get("/api/conversations")).json()["items"]
    await send(here, "dan", "And then?", conversation_id=conversation["id"], collections=[])
    assert told(last_prompt(here)) == set(), "an import gives no right"


async def test_a_chat_without_sources_asks_for_no_rights(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def note(*given: object) -> set[str]:
        asked.append(given)
        return set()

    retriever = here.services.sources.retriever
    for name in ("usable_documents", "closed_documents"):
        monkeypatch.setattr(retriever, name, note)
    monkeypatch.setattr(here.services.conversations, "_closed_documents", note)
    turn = await send(here, "ben", "Hello")
    await send(here, "ben", "And you?", conversation_id=turn["conversation_id"])
    await here.clients["ben"].get(f"/api/conversations/{turn['conversation_id']}")
    assert asked == []


def test_an_agent_sees_of_an_assistants_sources_what_it_has_told_the_visitor() -> None:
    given = (passage("Not told.", 1, title="Internal"), passage("Told.", 2, title="Public"))
    message = CaseMessage(
        id="1",
        case_id="1",
        position=1,
        author=AuthorKind.BOT,
        author_id=None,
        author_name=None,
        internal=False,
        text="So [2].",
        status="complete",
        created_at=datetime.now(UTC),
        client_id=None,
        citations=citations_of("So [2].", given),
        sources=given,
        attachments=(),
    )
    shown = CaseMessageData.of(message)
    assert [(one.title, one.text) for one in shown.sources] == [("", ""), ("Public", "Told.")]
    assert [(one.number, one.text) for one in shown.citations] == [(2, "Told.")]
