"""Two servers with accounts on one PostgreSQL: whoever signed in at one is known at the other, until it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.auth import revocation_watcher
from app.domain.roles import UserRole
from testing.databases import PostgresServer
from testing.waiting import eventually
from tests.app.desk import Desk, desk, sign_in

COOKIE = "deskmate_session"


@pytest.fixture
async def desks(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Desk, Desk]]:
    monkeypatch.setattr(revocation_watcher, "POLL_SECONDS", 0.05)
    url = postgres.migrated()
    quick: dict[str, Any] = {
        "gradio": False,
        "database_url": url,
        "checkpoint_seconds": 0.05,
        "lease_seconds": 600.0,
        "shutdown_seconds": 0,
    }
    async with desk(tmp_path / "a", **quick) as a, desk(tmp_path / "b", **quick) as b:
        yield a, b
    postgres.recycle(url)


@asynccontextmanager
async def same_browser(http: httpx.AsyncClient, at: Desk) -> AsyncIterator[httpx.AsyncClient]:
    """Its next requests, which the proxy sends to another server."""
    async with httpx.AsyncClient(base_url=at.live.url, cookies={COOKIE: http.cookies[COOKIE]}, timeout=30) as other:
        yield other


async def lines_of(http: httpx.AsyncClient, turn: dict[str, Any]) -> list[str]:
    async with http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as answer:
        assert answer.status_code == 200
        return [line async for line in answer.aiter_lines()]


async def test_a_reply_is_followed_stopped_and_continued_at_the_other_server(desks: tuple[Desk, Desk]) -> None:
    a, b = desks
    at_a = await a.add("ben", UserRole.AGENT)
    await a.add("eve", UserRole.AGENT)
    async with same_browser(at_a, b) as at_b, b.client() as eve:
        assert (await at_b.get("/api/account")).json()["name"] == "ben"
        a.live.engine.say("one", " two", " three").gates = {1: asyncio.Event()}
        turn = (await at_a.post("/api/turns", json={"text": "count"})).json()
        assert (await sign_in(eve, "eve")).status_code == 204
        for path in (f"/api/turns/{turn['turn_id']}/events", f"/api/conversations/{turn['conversation_id']}"):
            assert (await eve.get(path)).status_code == 404
        assert (await eve.post(f"/api/turns/{turn['turn_id']}/stop")).status_code == 404
        async with at_b.stream("GET", f"/api/turns/{turn['turn_id']}/events") as answer:
            lines = answer.aiter_lines()
            while "one" not in await anext(lines):
                pass
            assert (await at_b.post(f"/api/turns/{turn['turn_id']}/stop")).status_code == 204
            assert any('"stopped"' in line for line in [line async for line in lines])
        assert a.live.engine.aborted == 1
        b.live.engine.say(" two", " three")
        answer = await at_b.post(f"/api/messages/{turn['message_id']}/continue", json={})
        assert answer.status_code == 201, answer.text
        assert any('"complete"' in line for line in await lines_of(at_a, turn))
        talk = (await at_a.get(f"/api/conversations/{turn['conversation_id']}")).json()
        assert talk["messages"][-1]["content"] == "one two three"


async def test_signing_out_at_one_is_signing_out_at_all(desks: tuple[Desk, Desk]) -> None:
    a, b = desks
    at_a = await a.add("ben", UserRole.AGENT)
    async with same_browser(at_a, b) as at_b:
        a.live.engine.say("one", " two").gates = {1: asyncio.Event()}
        turn = (await at_a.post("/api/turns", json={"text": "count"})).json()
        following = asyncio.create_task(lines_of(at_a, turn))
        streams = a.live.app.state.http_metrics.event_streams
        await eventually(lambda: a.live.engine.running == streams._value.get() == 1)
        assert (await at_b.post("/api/account/sign-out")).status_code == 204
        assert (await at_a.get("/api/account")).status_code == 401
        assert not any('"end"' in line for line in await following)  # cut, though the reply goes on
        assert a.live.engine.running == 1


async def test_a_role_that_is_taken_at_one_is_gone_at_the_other(desks: tuple[Desk, Desk]) -> None:
    a, b = desks
    at_a = await a.add("ben", UserRole.AGENT)
    async with same_browser(at_a, b) as at_b:
        assert (await at_b.post("/api/turns", json={"text": "hi"})).status_code == 201
        await a.accounts.set_role(a.ids["ben"], UserRole.VIEWER, actor_id=None)
        assert (await at_b.post("/api/turns", json={"text": "hi"})).status_code == 403
        await a.accounts.set_disabled(a.ids["ben"], True, actor_id=None)
        assert (await at_b.get("/api/conversations")).status_code == 401
