"""Programs with API keys hand in contacts' messages and work with cases, within the rights of the key's user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.domain.roles import UserRole
from testing.knowledge import passage
from tests.app.api.widget import decision, inbox_with_source
from tests.app.desk import Desk, desk

pytestmark = pytest.mark.asyncio(loop_scope="module")
BOTH = ["cases:read", "cases:write"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """Ben is a member of the inbox, Cyd too, as a viewer; Dan is an agent of no inbox."""
    async with desk(tmp_path_factory.mktemp("data"), gradio=False) as running:
        roles = (UserRole.ADMIN, UserRole.AGENT, UserRole.VIEWER, UserRole.AGENT)
        for name, role in zip(("ada", "ben", "cyd", "dan"), roles, strict=True):
            await running.add(name, role)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def inbox_id(here: Desk) -> str:
    ada = here.clients["ada"]
    answer = await ada.post("/api/inboxes", json={"name": "Mail", "kind": "api", "bot": False})
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["id"]
    for name in ("ben", "cyd"):
        assert (await ada.put(f"/api/inboxes/{made}/members/{here.ids[name]}")).status_code == 204
    return made


async def program(here: Desk, name: str, scopes: list[str]) -> httpx.AsyncClient:
    """A program that has a key of a user, and nothing else."""
    made = await here.clients[name].post("/api/account/keys", json={"name": "mail", "scopes": scopes})
    assert made.status_code == 201, made.text
    http = here.client()
    http.headers["Authorization"] = f"Bearer {made.json()['key']}"
    here.clients[f"program {len(here.clients)}"] = http
    return http


def mail(
    inbox_id: str, client_id: str, text: str = "Where is my parcel?", sender: str = "eva@example.org"
) -> dict[str, Any]:
    contact = {"external_id": sender, "email": sender, "name": "Eva"}
    return {"inbox_id": inbox_id, "contact": contact, "text": text, "client_id": client_id}


async def test_a_message_handed_in_twice_or_at_once_is_stored_once(here: Desk, inbox_id: str) -> None:
    http = await program(here, "ben", BOTH)
    answers = await asyncio.gather(*(http.post("/api/cases", json=mail(inbox_id, "m1")) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {201}, [answer.text for answer in answers]
    assert len({answer.json()["message"]["id"] for answer in answers}) == 1
    case = answers[0].json()["case"]
    assert case["contact"] | {"id": ""} == case["contact"] | {"id": "", "email": "eva@example.org", "verified": False}
    again = await http.post("/api/cases", json=mail(inbox_id, "m1", "Another text"))
    assert again.status_code == 409
    more = await http.post("/api/cases", json=mail(inbox_id, "m2", "It is late."))
    assert more.json()["case"]["id"] == case["id"]
    whole = (await http.get(f"/api/cases/{case['id']}")).json()
    assert [message["text"] for message in whole["messages"]] == ["Where is my parcel?", "It is late."]
    assert {message["author"]["kind"] for message in whole["messages"]} == {"contact"}


async def test_a_program_answers_notes_resolves_and_reopens_by_the_contacts_message(here: Desk, inbox_id: str) -> None:
    http = await program(here, "ben", BOTH)
    case = (await http.post("/api/cases", json=mail(inbox_id, "r1", sender="fay@example.org"))).json()["case"]
    at = f"/api/cases/{case['id']}"
    reply = (await http.post(f"{at}/messages", json={"text": "Tomorrow.", "client_id": "a1"})).json()["message"]
    assert (reply["author"]["kind"], reply["author"]["id"]) == ("agent", here.ids["ben"])
    assert (await http.post(f"{at}/notes", json={"text": "By post"})).json()["message"]["internal"] is True
    assert (await http.post(f"{at}/resolve", json={})).json()["status"] == "resolved"
    new = {"text": "Thanks", "client_id": "r2", "author": "contact"}
    answers = [await http.post(f"{at}/messages", json=new) for _ in range(2)]
    assert answers[0].json()["message"]["id"] == answers[1].json()["message"]["id"]
    assert answers[0].json()["message"]["author"]["kind"] == "contact"
    assert answers[0].json()["case"]["status"] == "open"
    assert (await http.post(f"{at}/messages", json=new | {"client_id": None})).status_code == 422
    assert case["id"] in {row["id"] for row in (await http.get("/api/cases")).json()["cases"]}
    async with http.stream("GET", f"{at}/events") as stream:
        assert stream.status_code == 200
        assert "event: case" in await anext(stream.aiter_text())


async def test_a_key_has_the_rights_of_its_user_and_of_its_scopes(here: Desk, inbox_id: str) -> None:
    ben = await program(here, "ben", BOTH)
    case = (await ben.post("/api/cases", json=mail(inbox_id, "k1", sender="gil@example.org"))).json()["case"]
    at = f"/api/cases/{case['id']}"
    message = {"text": "Mine now", "client_id": "x1", "author": "contact"}
    new = mail(inbox_id, "k2", sender="gil@example.org")
    expected = [
        ("ben", ["cases:read"], 200, 403),
        ("ben", ["cases:write"], 403, None),
        ("ben", ["chat", "models"], 403, 403),
        ("cyd", BOTH, 200, 403),
        ("dan", BOTH, 404, 404),
    ]
    for name, scopes, reads, writes in expected:
        http = await program(here, name, scopes)
        assert (await http.get(at)).status_code == reads, (name, scopes)
        if writes is not None:
            assert (await http.post("/api/cases", json=new)).status_code == writes, (name, scopes)
            assert (await http.post(f"{at}/messages", json=message)).status_code == writes, (name, scopes)
    dan = await program(here, "dan", BOTH)
    assert (await dan.get("/api/cases")).json()["cases"] == []
    assert (await dan.get("/api/inboxes")).json()["inboxes"] == []
    admin = await program(here, "ada", BOTH)
    for path in (
        "/api/people",
        "/api/webhooks",
        "/api/conversations",
        "/api/account",
        f"/api/contacts/{case['contact']['id']}",
    ):
        assert (await admin.get(path)).status_code in (401, 403), path
    assert len((await ben.get(at)).json()["messages"]) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"contact": {"external_id": ""}},
        {"contact": {"external_id": "a", "email": "a@b\r\nBcc: c@d"}},
        {"contact": {"external_id": "a", "name": "a\nb"}},
        {"text": " "},
        {"client_id": "x" * 65},
        {"client_id": None},
    ],
)
async def test_wrong_values_are_refused_and_store_nothing(here: Desk, inbox_id: str, wrong: dict[str, Any]) -> None:
    http = await program(here, "ben", BOTH)
    before = (await http.get("/api/cases")).json()["counts"]
    answer = await http.post("/api/cases", json=mail(inbox_id, "w1", sender="hal@example.org") | wrong)
    assert answer.status_code == 422, answer.text
    assert (await http.get("/api/cases")).json()["counts"] == before


async def test_a_customer_whom_the_website_proves_is_verified_from_then_on(here: Desk, inbox_id: str) -> None:
    http = await program(here, "ben", BOTH)
    new = mail(inbox_id, "v1", sender="ida@example.org")
    assert (await http.post("/api/cases", json=new)).json()["case"]["contact"]["verified"] is False
    visitor = await here.services.cases.visitors.create(inbox_id, "hash", external_id="ida@example.org", name="Ida")
    assert visitor.contact.verified is True
    again = (await http.post("/api/cases", json=new | {"client_id": "v2"})).json()["case"]["contact"]
    assert (again["id"], again["name"], again["verified"]) == (visitor.contact.id, "Ida", True)


async def test_the_bot_answers_a_message_that_a_program_hands_in(here: Desk) -> None:
    inbox = await inbox_with_source(here, passage("Parcels can be returned within 30 days."))
    here.live.engine.say(decision("answer", "sources_answer", 1))
    here.live.engine.say("You can return it within 30 days [1].")
    http = await program(here, "ben", BOTH)
    case = (await http.post("/api/cases", json=mail(inbox["id"], "b1", "Can I return it?"))).json()["case"]
    assert case["status"] == "bot"
    said: list[tuple[str, str, str]] = []
    async with asyncio.timeout(60):
        while len(said) < 2 or said[-1][2] != "complete":
            messages = (await http.get(f"/api/cases/{case['id']}")).json()["messages"]
            said = [(one["author"]["kind"], one["text"], one["status"]) for one in messages]
    assert said[1] == ("bot", "You can return it within 30 days [1].", "complete")
    again = await http.post("/api/cases", json=mail(inbox["id"], "b1", "Can I return it?"))
    assert again.status_code == 201
    assert len((await http.get(f"/api/cases/{case['id']}")).json()["messages"]) == 2
