"""Visitors of a website in tests: an inbox, browsers that hold a token, and what their streams say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.domain.ids import new_id
from app.domain.knowledge import Passage
from testing.knowledge import ScriptedSearch
from tests.app.desk import Desk


@dataclass
class Visitor:
    """A browser with the widget."""

    http: httpx.AsyncClient
    token: str
    session: dict[str, Any]
    sent: int = 0

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(f"/api/widget/{path}", headers=self.headers)

    async def post(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        return await self.http.post(f"/api/widget/{path}", json=body or {}, headers=self.headers)

    async def write(self, text: str, client_id: str | None = None) -> dict[str, Any]:
        self.sent += 1
        answer = await self.post("messages", {"text": text, "client_id": client_id or f"c{self.sent}"})
        assert answer.status_code == 200, answer.text
        written: dict[str, Any] = answer.json()
        return written

    @asynccontextmanager
    async def events(self, last_event_id: str | None = None) -> AsyncIterator[Events]:
        headers = self.headers | ({"Last-Event-ID": last_event_id} if last_event_id else {})
        async with self.http.stream("GET", "/api/widget/events", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield Events(response.aiter_lines())


@dataclass
class Events:
    """Reads a stream of events."""

    lines: AsyncIterator[str]
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    last_id: str | None = None

    async def until(self, name: str, **wanted: Any) -> dict[str, Any]:
        """Reads on to an event of this name with these values; a dotted name is below another: ``author.kind``."""
        why = "ended"
        try:
            async with asyncio.timeout(60):
                async for event, data in self._read():
                    self.seen.append((event, data))
                    if event == name and all(_value(data, path) == value for path, value in wanted.items()):
                        return data
        except TimeoutError:
            why = "went on for a minute"
        raise AssertionError(f"the stream {why} without {name} {wanted}: {self.seen}")

    async def _read(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        event = ""
        async for line in self.lines:
            kind, _, value = line.partition(": ")
            if kind == "event":
                event = value
            elif kind == "id":
                self.last_id = value
            elif kind == "data":
                data = json.loads(value)
            elif not line and event:
                yield event, data
                event = ""

    def talk(self) -> dict[str, str]:
        """The texts of the messages by id, as a client puts them together."""
        texts: dict[str, str] = {}
        for event, data in self.seen:
            if event == "message":
                texts[data["id"]] = data["text"]
            elif event == "delta":
                assert data["offset"] == len(texts[data["message_id"]])
                texts[data["message_id"]] += data["text"]
        return texts


def _value(data: dict[str, Any], path: str) -> Any:
    value: Any = data
    for part in path.split("__"):
        value = value[part]
    return value


async def make_inbox(here: Desk, **fields: Any) -> dict[str, Any]:
    """An inbox that the admin Ada makes, with the agent Ben as its member."""
    given = {"name": "Shop", "kind": "widget", "allowed_origins": ["https://shop.example"], "bot": True, **fields}
    answer = await here.clients["ada"].post("/api/inboxes", json=given)
    assert answer.status_code in (200, 201), answer.text
    inbox: dict[str, Any] = answer.json()
    added = await here.clients["ada"].put(f"/api/inboxes/{inbox['id']}/members/{here.ids['ben']}")
    assert added.status_code < 300, added.text
    return inbox


async def inbox_with_source(here: Desk, *found: Passage) -> dict[str, Any]:
    """An inbox whose bot finds these passages."""
    made = await here.clients["ada"].post("/api/kb/collections", json={"name": f"Help {new_id()}"})
    assert made.status_code < 300, made.text
    collection = made.json()["id"]
    inbox = await make_inbox(here, collections=[collection])
    view = await here.services.cases.inboxes.view(inbox["id"])
    assert view is not None
    here.services.sources.retriever = ScriptedSearch(*found, members={collection: {view.user_id}})
    return inbox


async def visit(http: httpx.AsyncClient, inbox: dict[str, Any], **wish: Any) -> Visitor:
    answer = await http.post(f"/api/widget/{inbox['token']}/sessions", json=wish)
    assert answer.status_code == 200, answer.text
    session = answer.json()
    return Visitor(http, session["token"], session)


def decision(action: str, reason: str, *sources: int) -> str:
    return json.dumps({"action": action, "reason": reason, "sources": list(sources)})
