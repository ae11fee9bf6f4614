"""Drafts of replies in a case: for agents of its inbox, from the inbox's collections, and none of its messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx

from app.cases.case_drafts import NOT_OPEN
from app.domain.ids import new_id
from app.domain.knowledge import NewChunk
from app.domain.roles import UserRole
from app.store.knowledge.reading import ReadingQueue
from testing.documents import save_chunks
from testing.knowledge import ScriptedSearch, passage
from tests.app.api.secret_sources import SECRET
from tests.app.desk import Desk


async def test_agents_of_the_inbox_write_drafts_from_its_collections(here: Desk, search: ScriptedSearch) -> None:
    await here.add("dan", UserRole.AGENT)
    ada, ben, engine = here.clients["ada"], here.clients["ben"], here.live.engine
    collection = (await ada.post("/api/kb/collections", json={"name": "Parcels", "everyone": False})).json()["id"]
    made = await ada.post("/api/inboxes", json={"name": "Website", "bot": False, "collections": [collection]})
    inbox = made.json()
    member = f"/api/kb/collections/{collection}/members/{here.ids['ben']}"
    assert (await ada.put(member, json={"may_edit": False})).status_code == 204
    for name in ("ben", "cyd"):
        assert (await ada.put(f"/api/inboxes/{inbox['id']}/members/{here.ids[name]}")).status_code == 204
    cases = here.services.cases
    owner = (await cases.inboxes.get(here.ids["ada"], inbox["id"])).user_id
    here.services.sources.retriever = ScriptedSearch(passage(SECRET), members={collection: {owner}})
    visitor = await cases.visitors.create(inbox["id"], new_id())
    _, case = await cases.contacts.write(visitor.contact.id, "Where is it?")
    address, wanted = f"/api/cases/{case.id}", {"text": "Where is it?"}
    use = {"text": "It is 4711.", "used_as": "inserted"}

    for client, status in ((here.clients["cyd"], 403), (here.clients["dan"], 404), (here.client(), 401)):
        assert (await client.post(f"{address}/draft", json=wanted)).status_code == status
        assert (await client.put(f"{address}/drafts/{new_id()}", json=use)).status_code == status
    assert engine.calls == []

    engine.say("It is 4711 [1].")
    draft = await ben.post(f"{address}/draft", json=wanted)
    assert draft.status_code == 200, draft.text
    assert draft.json()["text"] == "It is 4711 [1]."
    assert SECRET in engine.calls[-1][0][1]["content"]
    assert (await ben.put(f"{address}/drafts/{draft.json()['id']}", json=use)).status_code == 204
    assert (await ben.put(f"{address}/drafts/{new_id()}", json=use)).status_code == 404
    shown = (await ben.get(address)).json()
    assert [message["text"] for message in shown["messages"]] == ["Where is it?"]
    assert shown["case"]["status"] == "open"
    assert (await ben.post(f"/api/conversations/{case.conversation_id}/draft", json=wanted)).status_code == 404

    engine.say("Elsewhere.")
    refused = await ben.post(f"{address}/draft", json={**wanted, "collections": [new_id()]})
    assert refused.status_code == 404, "a collection that the inbox does not answer from"


async def add_document(here: Desk, collection: str, text: str) -> None:
    """Adds a document with this text, read and ready to be found."""
    sent = await here.clients["ada"].post(
        "/api/kb/documents", files={"file": (f"{new_id()}.md", text.encode())}, data={"collection": collection}
    )
    assert sent.status_code == 202, sent.text
    queue = ReadingQueue(here.services.database, "test")
    while (job := await queue.claim_next()) is not None:
        assert await save_chunks(queue, job, "Terms", text, [NewChunk(heading="", start=0, end=len(text), tokens=9)])


async def test_an_agent_gets_no_passage_of_a_collection_that_only_the_inbox_may_use(here: Desk) -> None:
    await here.services.knowledge.ingest.close()  # it would claim the test's documents
    for name in ("dan", "eve"):
        await here.add(name, UserRole.AGENT)
    ada, engine = here.clients["ada"], here.live.engine
    engine._info = replace(engine.info, num_parameters=3_000_000_000)
    for name in ("Internal", "Public"):
        made = await ada.post("/api/kb/collections", json={"name": name, "everyone": name == "Public"})
        here.ids[name] = made.json()["id"]
        await add_document(here, here.ids[name], f"The {name.lower()} discount limit is {len(name)} percent.")
    inboxes: dict[str, Any] = {}
    for name, wanted in {"both": ["Internal", "Public"], "closed": ["Internal"]}.items():
        asked = {"name": name, "bot": False, "collections": [here.ids[one] for one in wanted]}
        inboxes[name] = (await ada.post("/api/inboxes", json=asked)).json()
        for member in ("ben", "cyd", "eve"):
            added = await ada.put(f"/api/inboxes/{inboxes[name]['id']}/members/{here.ids[member]}")
            assert added.status_code == 204
    internal = f"/api/kb/collections/{here.ids['Internal']}"
    assert (await ada.put(f"{internal}/members/{here.ids['eve']}", json={"may_edit": False})).status_code == 204
    cases: dict[str, str] = {}
    for name, inbox in inboxes.items():
        visitor = await here.services.cases.visitors.create(inbox["id"], new_id())
        _, case = await here.services.cases.contacts.write(visitor.contact.id, "Where is my parcel?")
        cases[name] = case.id

    async def draft(client: httpx.AsyncClient, case: str, **given: Any) -> tuple[int, str, str]:
        """The status, the answer, and what the model was given."""
        engine.say("Yes [1].")
        before = len(engine.calls)
        answer = await client.post(f"/api/cases/{cases[case]}/draft", json={"text": "the discount limit", **given})
        prompts = [message["content"] for call in engine.calls[before:] for message in call[0]]
        return answer.status_code, answer.text, "\n".join(prompts)

    for name in ("ada", "eve"):  # an admin, and a member of both the inbox and the collection
        status, _, prompt = await draft(here.clients[name], "both")
        assert status == 200
        assert "internal discount" in prompt
        assert "public discount" in prompt
        assert "internal discount" in (await draft(here.clients[name], "closed"))[2]

    ben = here.clients["ben"]
    searched = await ben.get("/api/kb/search", params={"q": "discount", "collection": here.ids["Internal"]})
    assert searched.status_code == 404
    for given in ({}, {"stream": True}, {"collections": [here.ids["Internal"], here.ids["Public"]]}):
        status, text, prompt = await draft(ben, "both", **given)
        assert status == 200
        assert "internal discount" not in text + prompt
        assert "public discount" in prompt
    for given in ({}, {"stream": True}, {"collections": [here.ids["Internal"]]}):
        status, text, prompt = await draft(ben, "closed", **given)
        assert (status, prompt) == (200, "")
        assert NOT_OPEN in text
        assert "internal discount" not in text
    for client, status in ((here.clients["cyd"], 403), (here.clients["dan"], 404), (here.client(), 401)):
        refused = await draft(client, "both")
        assert (refused[0], refused[2]) == (status, "")
        assert "discount limit is" not in refused[1]

    await ada.delete(f"/api/kb/collections/{here.ids['Public']}")
    assert "public discount" not in (await draft(here.clients["eve"], "both"))[2], "a collection that was deleted"
    gone = f"{internal}/members/{here.ids['eve']}"
    assert (await ada.delete(gone)).status_code == 204
    assert (await draft(here.clients["eve"], "closed"))[2] == "", "a right that was taken"
