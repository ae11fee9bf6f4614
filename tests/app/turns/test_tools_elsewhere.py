"""Replies that call tools, with two processes on one PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.tool_use import CUT_OFF, ToolUseStatus
from app.domain.views import MessageStatus
from app.errors import Conflict, InvalidInput
from app.turns.events import TurnToolUse
from app.turns.service import TurnRef
from app.turns.turn_requests import ToolDecision
from testing.databases import PostgresServer
from testing.fake_engine import call_pieces
from testing.tool_servers import install_demo_tools
from testing.waiting import eventually
from tests.app.two_processes import QUICK, Start, end_of, processes

pytestmark = pytest.mark.timeout(50)


@pytest.fixture
async def start(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Start]:
    url = postgres.migrated()
    async with processes(url, tmp_path) as start:
        yield start
    postgres.recycle(url)


async def test_a_decision_is_taken_by_any_process_and_once(start: Start) -> None:
    a, b = await start(**QUICK), await start(**QUICK)
    tools = [install_demo_tools(process.services, process.engine) for process in (a, b)]
    a.engine.say("Let me look.", *call_pieces("desk__order", '{"number": 7}'))
    ref = await a.services.turns.start(ME, text="Where is it?")
    (asked,) = (event.use for event in await b.read(ref.turn_id) if isinstance(event, TurnToolUse))
    decision = ToolDecision(frozenset({asked.id}), frozenset(), frozenset({asked.id}))
    for process in (a, b):
        process.engine.say("On Monday.")
    results = await asyncio.gather(
        *(process.services.turns.decide(ME, ref.message_id, decision) for process in (a, b)), return_exceptions=True
    )
    assert sum(isinstance(result, TurnRef) for result in results) == 1
    assert all(isinstance(result, TurnRef | Conflict | InvalidInput) for result in results)
    for process in (a, b):
        told = [event.use for event in await process.read(ref.turn_id) if isinstance(event, TurnToolUse)][-1]
        assert (told.status, told.result) == (ToolUseStatus.DONE, "Order 7 was sent on Monday.")
    assert [call for demo in tools for call in demo.calls] == ["order 7"]
    # What is allowed for the chat is known to both.
    for process in (a, b):
        process.engine.scripts.clear()
        process.engine.say(*call_pieces("desk__order", '{"number": 8}'))
        process.engine.say("Also.")
        again = await process.services.turns.start(ME, text="And 8?", conversation_id=ref.conversation_id)
        await process.read(again.turn_id)
    assert [call for demo in tools for call in demo.calls].count("order 8") == 2


async def test_a_tool_is_stopped_from_another_process(start: Start) -> None:
    a, b = await start(**QUICK), await start(**QUICK)
    demo = install_demo_tools(a.services, a.engine, auto_approve=("slow",))
    a.engine.say("Wait.", *call_pieces("desk__slow", "{}"))
    ref = await a.services.turns.start(ME, text="go")
    await eventually(lambda: demo.calls == ["slow"])
    await b.services.turns.stop(ME, ref.turn_id)
    events = await b.read(ref.turn_id)
    assert end_of(events).status is MessageStatus.STOPPED
    (use,) = (event.use for event in events if isinstance(event, TurnToolUse))
    assert (use.status, use.result) == (ToolUseStatus.FAILED, CUT_OFF)
