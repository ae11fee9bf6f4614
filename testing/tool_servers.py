"""A tool server in this process, put behind the services of a test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from mcp import Client
from mcp.server.mcpserver import MCPServer

from app.egress.policy import EgressPolicy
from app.services.container import Services
from app.tools.connection import Connection
from app.tools.mcp_file import HttpServer
from app.tools.servers import ToolServers
from testing.fake_engine import FakeEngine


@dataclass
class DemoTools:
    """What the demo server was asked, and what holds it back."""

    calls: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)  #: ``slow`` answers when it is set

    def server(self) -> MCPServer:
        """Makes a server with the tools ``order``, ``slow``, ``fail`` and ``large``."""
        server = MCPServer("desk")

        @server.tool(description="Looks up an order.")
        def order(number: int) -> str:
            self.calls.append(f"order {number}")
            return f"Order {number} was sent on Monday."

        @server.tool()
        async def slow() -> str:
            self.calls.append("slow")
            await self.gate.wait()
            return "at last"

        @server.tool()
        def fail() -> str:
            self.calls.append("fail")
            raise ValueError("the order does not exist")

        @server.tool()
        def large() -> str:
            self.calls.append("large")
            return "x" * 200_000

        return server


def install_demo_tools(
    services: Services, engine: FakeEngine, *, auto_approve: tuple[str, ...] = (), timeout_s: float = 30.0
) -> DemoTools:
    """Offers the demo server's tools, as ``desk__order``, in the chats of ``services``."""
    demo = DemoTools()
    mcp_server = demo.server()
    stated = HttpServer(url="http://tools.example/mcp", auto_approve=auto_approve)
    servers = ToolServers({"desk": stated}, EgressPolicy())
    servers._connections["desk"] = Connection("desk", lambda: Client(mcp_server), timeout_s)
    services.tools._servers = servers
    engine._info = replace(engine.info, can_call_tools=True)
    return demo
