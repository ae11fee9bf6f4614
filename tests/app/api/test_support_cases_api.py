"""The doors of inboxes and cases: every role, an agent of another inbox, no accounts, and what streams tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.domain.ids import new_id
from app.domain.roles import UserRole
from app.store.cases.visitors import Visitor
from testing.waiting import eventually
from tests.app.desk import Desk
from tests.app.live_server import live_server

NOWHERE = "0198c000-0000-7000-8000-00000000abcd"


@dataclass
class Support:
    """Ada is the admin; Ben is a member of the inbox, Cyd too, as a viewer; Dan is an agent of no inbox."""

    desk: Desk
    inbox: dict[str, Any]
    visitor: Visitor
    case_id: str = ""

    @property
    def clients(self) -> dict[str, httpx.AsyncClient]:
        return self.desk.clients

    async def write(self, text: str, **more: Any) -> str:
        """A message of the visitor; returns the id of its case."""
        _, case = await self.desk.services.cases.contacts.write(self.visitor.contact.id, text, **more)
        return case.id

    async def another(self) -> Support:
        return Support(self.desk, self.inbox, await new_visitor(self.desk, self.inbox["id"]))


@pytest.fixture
async def support(here: Desk) -> Support:
    await here.add("dan", UserRole.AGENT)
    ada = here.clients["ada"]
    answer = await ada.post("/api/inboxes", json={"name": "Website", "bot": False})
    assert answer.status_code == 201, answer.text
    inbox = answer.json()
    for name in ("ben", "cyd"):
        assert (await ada.put(f"/api/inboxes/{inbox['id']}/members/{here.ids[name]}")).status_code == 204
    found = Support(here, inbox, await new_visitor(here, inbox["id"]))
    found.case_id = await found.write("Where is my parcel?")
    return found


async def new_visitor(desk: Desk, inbox_id: str) -> Visitor:
    return await desk.services.cases.visitors.create(inbox_id, new_id())


def commands(case_id: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every route that changes a case."""
    at = f"/api/cases/{case_id}"
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return [
        ("PATCH", at, {"priority": "high"}),
        ("POST", f"{at}/messages", {"text": "Hello"}),
        ("POST", f"{at}/notes", {"text": "A note"}),
        ("POST", f"{at}/assign", {"user_id": None}),
        ("POST", f"{at}/snooze", {"until": until}),
        ("POST", f"{at}/resolve", {}),
        ("POST", f"{at}/reopen", {}),
        ("POST", f"{at}/merge", {"into": NOWHERE}),
    ]


def reads(case_id: str) -> list[str]:
    """Every route that reads a case, but its stream."""
    return [f"/api/cases/{case_id}", f"/api/cases/{case_id}/attachments/{NOWHERE}"]


async def test_members_read_agents_change_and_no_one_else_learns_that_a_case_exists(support: Support) -> None:
    ben, cyd, dan, ada = (support.clients[name] for name in ("ben", "cyd", "dan", "ada"))
    signed_out = support.desk.client()
    for method, path, body in commands(support.case_id):
        assert (await cyd.request(method, path, json=body)).status_code == 403, path
        assert (await dan.request(method, path, json=body)).status_code == 404, path
        assert (await signed_out.request(method, path, json=body)).status_code == 401, path
        allowed = 404 if path.endswith("merge") else 200
        assert (await ben.request(method, path, json=body)).status_code == allowed, path
        assert (await ada.request(method, path, json=body)).status_code == allowed, path
    for path in reads(support.case_id):
        allowed = 404 if "attachments" in path else 200
        for reader in (ada, ben, cyd):
            assert (await reader.get(path)).status_code == allowed, path
        assert (await dan.get(path)).status_code == 404
        assert (await signed_out.get(path)).status_code == 401
    sign = f"/api/cases/{support.case_id}/presence"
    assert [(await one.post(sign, json={})).status_code for one in (ben, cyd, dan, signed_out)] == [204, 204, 404, 401]
    assert (await dan.get(f"/api/cases/{support.case_id}/events")).status_code == 404
    assert (await signed_out.get("/api/cases/events")).status_code == 401
    assert (await signed_out.get("/api/cases/tags")).status_code == 401
    assert (await ada.patch(f"/api/cases/{support.case_id}", json={"tags": ["vip"]})).status_code == 200
    for client, number in ((ada, 1), (ben, 1), (cyd, 1), (dan, 0)):
        listed = (await client.get("/api/cases")).json()
        assert (len(listed["cases"]), listed["counts"]["all"]) == (number, number)
        assert len((await client.get("/api/inboxes")).json()["inboxes"]) == number
        assert len((await client.get("/api/cases?q=parcel")).json()["cases"]) == number
        tagged = (await client.get("/api/cases?tag=vip")).json()
        assert (len(tagged["cases"]), tagged["counts"]["all"]) == (number, number)
        assert (await client.get("/api/cases?tag=other")).json()["counts"]["all"] == 0
        assert (await client.get("/api/cases/tags")).json() == {"tags": {"vip": 1} if number else {}}


async def test_only_admins_change_inboxes(support: Support) -> None:
    at = f"/api/inboxes/{support.inbox['id']}"
    dan_id = support.desk.ids["dan"]
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/api/inboxes", {"name": "Mine"}),
        ("PATCH", at, {"name": "Mine"}),
        ("POST", f"{at}/secret", {}),
        ("PUT", f"{at}/members/{dan_id}", {}),
        ("DELETE", f"{at}/members/{dan_id}", None),
        ("DELETE", at, None),
    ]
    signed_out = support.desk.client()
    for method, path, body in asked:
        for name in ("ben", "cyd", "dan"):
            assert (await support.clients[name].request(method, path, json=body)).status_code == 403, (name, path)
        assert (await signed_out.request(method, path, json=body)).status_code == 401
    ada = support.clients["ada"]
    changed = await ada.patch(at, json={"name": "Shop", "allowed_origins": ["https://shop.example"], "bot": True})
    assert (changed.json()["name"], changed.json()["allowed_origins"]) == ("Shop", ["https://shop.example"])
    secrets = [(await ada.post(f"{at}/secret", json={})).json()["secret"] for _ in range(2)]
    assert len(set(secrets)) == 2
    assert await support.desk.services.cases.inboxes.identity_keys(support.inbox["id"]) == secrets[::-1]
    listed = (await ada.get("/api/inboxes")).text
    assert not any(secret in listed for secret in secrets)
    assert (await ada.delete(f"{at}/members/{support.desk.ids['ben']}")).status_code == 204
    assert (await support.clients["ben"].get(f"/api/cases/{support.case_id}")).status_code == 404
    assert (await ada.delete(at)).status_code == 204
    assert (await ada.get("/api/cases")).json()["cases"] == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"name": " "}, "name"),
        ({"name": "A", "time_zone": "Mars/Olympus"}, "time zone"),
        ({"name": "A", "allowed_origins": ["*"]}, "exact origins"),
        ({"name": "A", "opening_hours": [{"day": 7, "from": "09:00", "to": "17:00"}]}, "day"),
        ({"name": "A", "opening_hours": [{"day": 1, "from": "17:00", "to": "09:00"}]}, "later than"),
        ({"name": "A", "opening_hours": [{"day": 1, "from": "9", "to": "17:00"}]}, "from"),
        ({"name": "A", "collections": [NOWHERE]}, "collection"),
        ({"name": "A", "owner": "me"}, "owner"),
    ],
)
async def test_a_wrong_inbox_is_refused_with_a_sentence(here: Desk, body: dict[str, Any], says: str) -> None:
    answer = await here.clients["ada"].post("/api/inboxes", json=body)
    assert answer.status_code in (404, 422)
    assert says in answer.json()["error"]["message"]
    assert (await here.clients["ada"].get("/api/inboxes")).json()["inboxes"] == []


async def test_wrong_commands_are_refused_with_a_sentence_and_change_nothing(support: Support) -> None:
    ben, at = support.clients["ben"], f"/api/cases/{support.case_id}"
    before = (await ben.get(at)).json()
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    asked: list[tuple[str, dict[str, Any], int]] = [
        ("messages", {"text": "  "}, 422),
        ("messages", {"text": "Hello", "client_id": ""}, 422),
        ("messages", {"text": "Hello", "epoch": 99}, 409),
        ("notes", {"text": "x" * 200_001}, 422),
        ("assign", {"user_id": support.desk.ids["dan"]}, 422),
        ("assign", {"user_id": support.desk.ids["cyd"]}, 422),
        ("assign", {}, 422),
        ("snooze", {"until": past}, 422),
        ("snooze", {"until": "9999-12-31T23:59:59Z"}, 422),
        ("snooze", {"until": "2027-01-01T00:00:00"}, 422),
        ("merge", {"into": support.case_id}, 409),
    ]
    for name, body, status in asked:
        answer = await ben.post(f"{at}/{name}", json=body)
        assert answer.status_code == status, (name, body, answer.text)
        assert answer.json()["error"]["message"]
    assert (await ben.post(f"{at}/messages", json={"text": "x", "epoch": 99})).json()["error"]["code"] == "stale_case"
    assert (await ben.patch(at, json={})).status_code == 422
    assert (await ben.patch(at, json={"tags": ["a" * 51]})).status_code == 422
    for query in ("cursor=nonsense", "limit=0", "view=none", "limit=201"):
        assert (await ben.get(f"/api/cases?{query}")).status_code == 422, query
    for id in ("nonsense", "%00", "x" * 100):
        assert (await ben.get(f"/api/cases/{id}")).status_code == 404
    assert (await ben.get(at)).json() == before


async def test_a_message_is_sent_once_for_each_client_id(support: Support) -> None:
    ben, at = support.clients["ben"], f"/api/cases/{support.case_id}"
    body = {"text": "It is on its way.", "client_id": "c1", "epoch": 1}
    both = await asyncio.gather(*(ben.post(f"{at}/messages", json=body) for _ in range(2)))
    assert [answer.status_code for answer in both] == [200, 200]
    assert len({answer.json()["message"]["id"] for answer in both}) == 1
    again = await ben.post(f"{at}/messages", json={**body, "text": "Another"})
    assert again.status_code == 409
    assert [message["text"] for message in (await ben.get(at)).json()["messages"]] == [
        "Where is my parcel?",
        "It is on its way.",
    ]


async def test_cases_of_one_contact_are_merged_and_others_are_not(support: Support) -> None:
    ben, cases = support.clients["ben"], support.desk.services.cases
    stranger = await support.another()
    strange = await stranger.write("Mine is private")
    answer = await ben.post(f"/api/cases/{support.case_id}/merge", json={"into": strange})
    assert answer.status_code == 409
    assert "different contacts" in answer.json()["error"]["message"]
    await ben.post(f"/api/cases/{support.case_id}/resolve", json={})
    await age_resolution(support, support.case_id)
    second = await support.write("Again about my parcel")
    assert second != support.case_id
    opened = (await ben.get(f"/api/cases/{second}")).json()
    assert [case["id"] for case in opened["other_cases"]] == [support.case_id]
    merged = await ben.post(f"/api/cases/{support.case_id}/merge", json={"into": second})
    assert merged.json()["id"] == second
    texts = [message["text"] for message in (await ben.get(f"/api/cases/{second}")).json()["messages"]]
    assert texts == ["Where is my parcel?", "Again about my parcel"]
    assert (await ben.post(f"/api/cases/{support.case_id}/reopen", json={})).status_code == 409
    assert await support.write("And again") == second
    assert [message.text for message in await cases.contacts.messages(support.visitor.contact.id, strange)] == []


async def age_resolution(support: Support, case_id: str) -> None:
    """Makes a resolution so old that the contact's next message begins another case."""
    from app.store.db.case_models import SupportCase

    def work(session: Any) -> None:
        session.get(SupportCase, case_id).resolved_at = datetime.now(UTC) - timedelta(days=30)

    await support.desk.services.database.write(work)


async def test_the_streams_tell_what_others_do(support: Support) -> None:
    ben, cyd = support.clients["ben"], support.clients["cyd"]
    at = f"/api/cases/{support.case_id}"
    async with events(cyd, "/api/cases/events") as listed, events(cyd, f"{at}/events") as opened:
        await eventually(lambda: bool(listed) and len(opened) >= 2)
        assert [name for name, _ in listed] == ["counts"]
        assert [name for name, _ in opened] == ["case", "present"]
        await ben.post(f"{at}/messages", json={"text": "It is on its way."})
        await eventually(lambda: len(opened) >= 6 and len(listed) >= 3)
        told = opened[2:]
        assert [name for name, _ in told] == ["message", "event", "event", "case"]
        assert (told[0][1]["text"], told[0][1]["author"]["name"]) == ("It is on its way.", "ben")
        assert [data["kind"] for name, data in told if name == "event"] == ["assigned", "replied"]
        assert [name for name, _ in listed[1:]] == ["case", "counts"]
        assert listed[1][1]["assignee"]["name"] == "ben"
        await ben.post(f"{at}/presence", json={"typing": True})
        await eventually(lambda: opened[-1][0] == "present")
        assert opened[-1][1]["present"] == [{"id": support.desk.ids["ben"], "name": "ben", "typing": True}]
        await ben.post(f"{at}/presence", json={"here": False})
        await eventually(lambda: opened[-1][1].get("present") == [])
        await ben.post(f"{at}/notes", json={"text": "A note"})
        await eventually(lambda: opened[-1][0] == "case")
        assert opened[-2][1]["internal"] is True


async def test_an_agent_who_leaves_the_inbox_is_told_nothing_more(support: Support) -> None:
    at = f"/api/cases/{support.case_id}"
    async with events(support.clients["cyd"], f"{at}/events") as opened:
        await eventually(lambda: len(opened) >= 2)
        member = f"/api/inboxes/{support.inbox['id']}/members/{support.desk.ids['cyd']}"
        assert (await support.clients["ada"].delete(member)).status_code == 204
        await support.clients["ben"].post(f"{at}/messages", json={"text": "A secret"})
        await eventually(lambda: ("closed", {}) in opened)
        assert "A secret" not in str(opened)


async def test_without_accounts_there_are_no_cases(tmp_path: Path) -> None:
    async with live_server(tmp_path / "data", gradio=False) as running, httpx.AsyncClient(base_url=running.url) as http:
        for path in ("/api/inboxes", "/api/cases", "/api/cases/events", f"/api/cases/{NOWHERE}"):
            answer = await http.get(path)
            assert answer.status_code == 404
            assert "APP_ACCOUNTS" in answer.json()["error"]["message"]


async def test_an_api_key_opens_no_case(support: Support) -> None:
    made = await support.clients["ben"].post("/api/account/keys", json={"name": "a program", "scopes": ["chat"]})
    assert made.status_code == 201, made.text
    key = {"Authorization": f"Bearer {made.json()['key']}"}
    async with support.desk.client() as http:
        for path in ("/api/cases", "/api/inboxes", f"/api/cases/{support.case_id}"):
            assert (await http.get(path, headers=key)).status_code in (401, 403)


async def test_figures_are_for_admins_and_viewers_of_the_inbox(support: Support) -> None:
    ben, ada, cyd, dan = (support.clients[name] for name in ("ben", "ada", "cyd", "dan"))
    await ben.post(f"/api/cases/{support.case_id}/messages", json={"text": "Here."})
    await ben.post(f"/api/cases/{support.case_id}/resolve", json={})
    await support.desk.services.cases.contacts.rate(support.visitor.contact.id, 5, "Thanks")
    day = datetime.now(UTC).date().isoformat()
    query = f"from={day}&to={day}"
    for reader in (ada, cyd):
        report = (await reader.get(f"/api/cases/figures?{query}")).json()
        total = report["total"]
        assert (total["cases"], total["replies"], total["resolved"], total["resolved_by_bot"]) == (1, 1, 1, 0)
        assert (total["satisfaction"], total["ratings"], total["deflection"]) == (5.0, 1, 0.0)
        assert [(agent["name"], agent["satisfaction"]) for agent in report["agents"]] == [("ben", 5.0)]
        assert [inbox["name"] for inbox in report["inboxes"]] == ["Website"]
        assert sum(hour["resolved"] for hour in report["hours"]) == 1
        assert report["days"] == [{**total, "name": day}]
    lines = (await ada.get(f"/api/cases/figures/csv?{query}")).text.splitlines()
    assert lines[0].startswith("by,name,id,cases,handed_off")
    assert len(lines) == 1 + 1 + 1 + 24 + 1 + 1
    for other in (ben, dan):
        assert (await other.get(f"/api/cases/figures?{query}")).status_code == 403
    assert (await ada.get(f"/api/cases/figures?{query}&inbox={NOWHERE}")).json()["total"]["cases"] == 0
    assert (await ada.get("/api/cases/figures?from=2026-02-01&to=2026-01-01")).status_code == 422


async def test_admins_hand_out_and_erase_all_that_is_stored_of_a_contact(support: Support) -> None:
    ben, ada = support.clients["ben"], support.clients["ada"]
    contact_id = support.visitor.contact.id
    other = await support.another()
    kept = await other.write("I stay")
    await ben.post(f"/api/cases/{support.case_id}/notes", json={"text": "A note"})
    at = f"/api/contacts/{contact_id}"
    for name, status in (("ben", 403), ("cyd", 403), ("dan", 403)):
        for method in ("GET", "DELETE"):
            assert (await support.clients[name].request(method, at)).status_code == status
    assert (await support.desk.client().get(at)).status_code == 401
    found = (await ada.get(at)).json()
    assert [case["id"] for case in found["cases"]] == [support.case_id]
    assert [message["text"] for message in found["messages"]] == ["Where is my parcel?", "A note"]
    assert [event["kind"] for event in found["events"]] == ["created"]
    assert (await ada.delete(at)).status_code == 204
    assert [(await ada.request(method, at)).status_code for method in ("GET", "DELETE")] == [404, 404]
    assert (await ben.get(f"/api/cases/{support.case_id}")).status_code == 404
    assert (await ben.get(f"/api/cases/{kept}")).status_code == 200
    assert (await ben.get("/api/cases?q=parcel")).json()["cases"] == []


@asynccontextmanager
async def events(http: httpx.AsyncClient, path: str) -> AsyncIterator[list[tuple[str, dict[str, Any]]]]:
    """Collects the events of a stream while the block runs; ``closed`` is the last one if the server ends it."""
    found: list[tuple[str, dict[str, Any]]] = []

    async def read() -> None:
        async with http.stream("GET", path, timeout=None) as response:
            assert response.status_code == 200
            name = ""
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found.append((name, json.loads(line.removeprefix("data: "))))
        found.append(("closed", {}))

    reading = asyncio.create_task(read())
    try:
        yield found
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
