"""The calls of a server that run at a time: one user's do not hold up another's."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

from app.egress.policy import EgressPolicy
from app.tools.call_slots import CallSlots
from app.tools.connection import MAX_CONCURRENT_CALLS, Connection, ToolServerError
from app.tools.mcp_file import HttpServer
from app.tools.servers import ToolServers
from testing.waiting import eventually

HALF = MAX_CONCURRENT_CALLS // 2


class Held:
    """A server whose calls end when they may."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self.running: list[str] = []
        self.gate = asyncio.Event()
        server = MCPServer("desk")

        @server.tool()
        async def hold(who: str) -> str:
            self.running.append(who)
            await self.gate.wait()
            return who

        @server.tool()
        def quick() -> str:
            return "quick"

        self.servers = ToolServers({"desk": HttpServer(url="http://tools.example/mcp")}, EgressPolicy())
        self.servers._connections["desk"] = Connection("desk", lambda: Client(server), timeout_s)

    def hold(self, user: str, number: int = 1) -> list[asyncio.Task[object]]:
        call = self.servers.call
        return [asyncio.create_task(call("desk__hold", f'{{"who": "{user}"}}', user)) for _ in range(number)]


async def test_a_users_many_calls_leave_the_others_theirs() -> None:
    held = Held()
    many = held.hold("ada", 16)
    await eventually(lambda: held.running == ["ada"] * HALF)
    for _ in range(3):
        assert (await held.servers.call("desk__quick", "{}", "bob")).text == "quick"
    assert held.running == ["ada"] * HALF
    more = held.hold("bob", HALF)
    await eventually(lambda: held.running.count("bob") == HALF)
    last = held.hold("cleo")
    many[0].cancel()  # the place is another's at once
    await eventually(lambda: len(held.running) == MAX_CONCURRENT_CALLS + 1)
    held.gate.set()
    await asyncio.gather(*many[1:], *more, *last)
    assert sorted(held.running) == ["ada"] * 16 + ["bob"] * HALF + ["cleo"]
    await held.servers.close()


async def test_the_time_in_which_a_call_waits_for_the_users_own_counts() -> None:
    held = Held(timeout_s=0.3)
    await held.servers.statuses()
    slots = held.servers._connections["desk"]._slots
    async with AsyncExitStack() as own:
        for _ in range(HALF):
            await own.enter_async_context(slots.slot("ada"))
        with pytest.raises(ToolServerError, match="did not answer"):
            await held.servers.call("desk__quick", "{}", "ada")
    assert (await held.servers.call("desk__quick", "{}", "ada")).text == "quick"
    await held.servers.close()


@pytest.mark.parametrize("total", [1, 2, 8])
async def test_slots_are_given_back_and_users_forgotten(total: int) -> None:
    slots, running, most = CallSlots(total), 0, 0

    async def use(user: str | None) -> None:
        nonlocal running, most
        async with slots.slot(user):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(use("ada") for _ in range(20)))
    assert most == max(1, total // 2)
    await asyncio.gather(*(use(str(number)) for number in range(20)), *(use(None) for _ in range(20)))
    assert (running, most) == (0, total)
    assert len(slots._of_users) == 0
