"""kill -9 while a tool runs: the call was cut off and is never made again, and the conversation goes on."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.domain.tool_use import CUT_OFF
from tests.faults import tool_program
from tests.faults.conftest import Start
from tests.faults.scripted_replies import call_question
from tests.faults.test_kill import swept
from tests.faults.users import client, follow, read_stored, send


def write_mcp_file(folder: Path) -> tuple[Path, Path]:
    """Defines the tool server; returns the operator's file, and the file with the calls."""
    mcp_file, calls = folder / "mcp.json", folder / "calls.txt"
    desk = {"command": sys.executable, "args": [tool_program.__file__, str(calls)], "autoApprove": ["slow"]}
    mcp_file.write_text(json.dumps({"mcpServers": {"desk": desk}}))
    return mcp_file, calls


def lines(calls: Path) -> list[str]:
    return calls.read_text().splitlines() if calls.exists() else []


async def called(calls: Path, number: int) -> None:
    """Waits until the tool server has been called so often."""
    for _ in range(6000):
        if len(lines(calls)) >= number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"the tool was called {len(lines(calls))} times, not {number}")


async def events_of(http: Any, turn_id: str) -> list[Any]:
    return [event async for event in follow(http, turn_id)]


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_a_call_that_a_kill_cut_off_is_not_made_again(start: Start, database: Engine, tmp_path: Path) -> None:
    mcp_file, calls = write_mcp_file(tmp_path)
    patient = {"app.tools.chat_tools.WAIT_SECONDS": 60.0}  # on a busy machine a program takes long to start
    server = start(mcp_file=mcp_file, constants=patient)
    async with client(server.url) as http:
        turns = [await send(http, call_question(number, "desk__slow", order=number)) for number in range(2)]
        await called(calls, 2)
        server.kill()
    made = sorted(lines(calls))
    assert made == ["slow 0", "slow 1"]
    for _ in range(2):  # a second restart does not make it either
        server = start(mcp_file=mcp_file, constants=patient)
        await swept(database)
        async with client(server.url) as http:
            for turn in turns:
                *_, reply = (await read_stored(http, turn["conversation_id"]))["messages"]
                (use,) = reply["tool_uses"]
                assert (reply["id"], reply["status"], reply["content"]) == (turn["message_id"], "interrupted", "")
                assert (use["name"], use["status"], use["result"]) == ("desk__slow", "allowed", "")
                *_, end = await events_of(http, turn["turn_id"])
                assert (end.name, end.data["status"]) == ("end", "interrupted")
        server.kill()
    server = start(mcp_file=mcp_file, constants=patient)
    await swept(database)
    async with client(server.url) as http:
        for number, turn in enumerate(turns):
            if number == 0:  # Continue
                response = await http.post(f"/api/messages/{turn['message_id']}/continue", json={})
                assert response.status_code == 201, response.text
                again = response.json()
            else:  # or the next message
                again = await send(http, call_question(number, "desk__slow"), conversation_id=turn["conversation_id"])
            *_, end = await events_of(http, again["turn_id"])
            assert (end.name, end.data["status"]) == ("end", "complete")
            *_, reply = (await read_stored(http, turn["conversation_id"]))["messages"]
            # The reply says which result the model was given.
            assert reply["content"] == f"The tool said: {CUT_OFF}"
    assert sorted(lines(calls)) == made
