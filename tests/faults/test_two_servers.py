"""Two servers on one PostgreSQL: one stands still for longer than its lease, and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import httpx
import pytest

from testing.json_events import JsonEvent
from tests.faults.conftest import Start
from tests.faults.processes import LONG_LEASE
from tests.faults.scripted_replies import make_question, whole_reply
from tests.faults.users import client, follow, read_stored, send

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


async def read(http: httpx.AsyncClient, turn_id: str) -> list[JsonEvent]:
    return [event async for event in follow(http, turn_id)]


async def stored_reply(http: httpx.AsyncClient, conversation_id: str) -> str:
    reply: str = (await read_stored(http, conversation_id))["messages"][-1]["content"]
    return reply


async def begun(http: httpx.AsyncClient, turn: dict[str, Any]) -> None:
    """Wait until the reply has a word."""
    while not await stored_reply(http, turn["conversation_id"]):  # noqa: ASYNC110 (the database tells nobody)
        await asyncio.sleep(0.01)


@pytest.mark.full
async def test_a_server_that_stood_still_writes_over_nothing_that_others_wrote(start: Start) -> None:
    # It may be stopped in the middle of a transaction, which the database server ends after a while.
    a, b = start(delay=0.05, constants={"app.store.db.database.IDLE_TRANSACTION_SECONDS": 1}), start(lease_seconds=3)
    question = make_question(1, 300)  # far from its end when the server is stopped, however late that is
    async with client(a.url) as at_a, client(b.url) as at_b:
        turn = await send(at_a, question)
        read_at_a = asyncio.create_task(read(at_a, turn["turn_id"]))
        await begun(at_b, turn)
        os.kill(a.pid, signal.SIGSTOP)
        try:
            events = await read(at_b, turn["turn_id"])
            assert events[-1].data["status"] == "interrupted"
            response = await at_b.post(f"/api/messages/{turn['message_id']}/continue", json={})
            assert response.status_code == 201, response.text
        finally:
            os.kill(a.pid, signal.SIGCONT)  # while the other one goes on with it
        events = await read(at_b, turn["turn_id"])
        assert events[-1].data["status"] == "complete"
        assert "".join(event.data["text"] for event in events if event.name == "text") == whole_reply(question)
        # Whoever read at the slow one is told, and finds there what the other wrote.
        assert (await read_at_a)[-1].name == "end"
        events = await read(at_a, turn["turn_id"])
        assert events[-1].data["status"] == "complete"
        assert await stored_reply(at_a, turn["conversation_id"]) == whole_reply(question)
        assert "interrupted by another process" in a.log
        # And it serves on.
        turn = await send(at_a, make_question(4, 3), conversation_id=turn["conversation_id"])
        assert (await read(at_b, turn["turn_id"]))[-1].data["status"] == "complete"


async def test_a_reply_is_stopped_and_deleted_at_the_other_server(start: Start) -> None:
    a, b = start(delay=0.02, **LONG_LEASE), start(delay=0.02, **LONG_LEASE)
    async with client(a.url) as at_a, client(b.url) as at_b:
        turn = await send(at_a, make_question(2, 10_000))
        readers = [asyncio.create_task(read(http, turn["turn_id"])) for http in (at_a, at_b)]
        await begun(at_b, turn)
        assert (await at_b.post(f"/api/turns/{turn['turn_id']}/stop")).status_code == 204
        for reader in readers:
            assert (await reader)[-1].data["status"] == "stopped"

        turn = await send(at_a, make_question(3, 10_000), conversation_id=turn["conversation_id"])
        readers = [asyncio.create_task(read(http, turn["turn_id"])) for http in (at_a, at_b)]
        await begun(at_b, turn)
        assert (await at_b.delete(f"/api/conversations/{turn['conversation_id']}")).status_code == 204
        for reader in readers:
            assert (await reader)[-1].name == "gone"
