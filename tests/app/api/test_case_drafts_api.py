"""Drafts of replies in a case: for agents of its inbox, from the inbox's collections, and none of its messages."""

from __future__ import annotations

from app.domain.ids import new_id
from app.domain.roles import UserRole
from testing.knowledge import ScriptedSearch, passage
from tests.app.api.secret_sources import SECRET
from tests.app.desk import Desk


async def test_agents_of_the_inbox_write_drafts_from_its_collections(here: Desk, search: ScriptedSearch) -> None:
    await here.add("dan", UserRole.AGENT)
    ada, ben, engine = here.clients["ada"], here.clients["ben"], here.live.engine
    collection = (await ada.post("/api/kb/collections", json={"name": "Parcels", "everyone": False})).json()["id"]
    made = await ada.post("/api/inboxes", json={"name": "Website", "bot": False, "collections": [collection]})
    inbox = made.json()
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
