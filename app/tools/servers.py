"""The operator's tool servers: which tools they offer, and calls of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from app.egress.policy import EgressPolicy
from app.tools.connection import Connection, ServerTool, ToolServerError
from app.tools.mcp_file import SEPARATOR, HttpServer, McpServer, StdioServer
from app.tools.results import ToolResult
from engine import Tool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp import Client

MAX_TOOLS_PER_SERVER = 64
MAX_DESCRIPTION_CHARS = 2_000
MAX_SCHEMA_CHARS = 32_000
MAX_NAME_CHARS = 64
"""Characters of a function's name that OpenAI's API and chat templates allow."""
_CONTROL_TOKEN = re.compile(r"<[^<>]*>|\[/?[A-Z_]{3,}\]")  # such as <|im_end|>, </s> and [INST]
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a server, under the name by which a model calls it."""

    server: str
    tool: ServerTool

    @property
    def name(self) -> str:
        """The server's and the tool's name, ``server__tool``, in the characters that models are given."""
        return f"{self.server}{SEPARATOR}{_UNUSUAL.sub('_', self.tool.name)}"[:MAX_NAME_CHARS]

    def for_engine(self) -> Tool:
        return Tool(self.name, self.tool.description[:MAX_DESCRIPTION_CHARS], self.tool.parameters)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server with its tools, or the reason why it has none."""

    name: str
    tools: tuple[OfferedTool, ...] = ()
    problem: str | None = None


class ToolServers:
    """All servers of the operator's file. Each connects when it is first used.

    Args:
        servers: by name, see :func:`app.tools.mcp_file.read_mcp_file`.
        egress: where servers at an address may be.
    """

    def __init__(self, servers: Mapping[str, McpServer], egress: EgressPolicy) -> None:
        self._servers = dict(servers)
        self._connections = {
            name: Connection(name, _maker(server, egress), server.timeout_seconds) for name, server in servers.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._servers)

    async def statuses(self) -> list[ServerStatus]:
        """Asks all servers for their tools, at the same time; one that fails has a problem and no tools."""
        return list(await asyncio.gather(*(self.status(name) for name in self._servers)))

    async def status(self, name: str) -> ServerStatus:
        """Asks a server for its tools."""
        try:
            return ServerStatus(name, tuple(await self._offered(name)))
        except ToolServerError as error:
            return ServerStatus(name, problem=str(error))

    def is_auto_approved(self, tool: OfferedTool) -> bool:
        """Whether the operator lets chats call the tool without asking the user."""
        return tool.tool.name in self._servers[tool.server].auto_approve

    def server_of(self, name: str) -> str | None:
        """Returns the name of the server whose tool this is, by :attr:`OfferedTool.name`; None if there is none."""
        server, separator, _ = name.partition(SEPARATOR)
        return server if separator and server in self._servers else None

    async def call(self, name: str, arguments: str, user_id: str | None = None) -> ToolResult:
        """Calls an offered tool.

        Args:
            name: as :attr:`OfferedTool.name`.
            arguments: JSON text, an object.
            user_id: who calls it; a user has at most half of a server's calls at a time. None: no user of a desk.

        Returns:
            The result. What a model can mend, such as a wrong name or arguments, is a result that is an error.

        Raises:
            ToolServerError: the server cannot be used.
        """
        server = self.server_of(name)
        if server is None:
            return ToolResult(f"There is no tool {name}.", is_error=True)
        offered = {tool.name: tool for tool in await self._offered(server)}
        if name not in offered:
            return ToolResult(f"There is no tool {name}. {server} has: {', '.join(offered)}.", is_error=True)
        try:
            # Also refuses what no server could be sent: lone surrogates, NaN, endless numbers and nesting.
            parsed = from_json(arguments or "{}", allow_inf_nan=False)
        except ValueError as error:
            return ToolResult(f"The arguments are not JSON: {error}.", is_error=True)
        if not isinstance(parsed, dict):
            return ToolResult("The arguments must be a JSON object.", is_error=True)
        return await self._connections[server].call(offered[name].tool.name, parsed, user_id)

    async def close(self) -> None:
        """Ends all connections, and the servers that are programs."""
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    async def _offered(self, name: str) -> list[OfferedTool]:
        """Returns the tools of a server that the operator offers and a model can be given.

        Raises:
            ToolServerError: the server cannot be used, or two of its tools have the same name.
        """
        chosen = self._servers[name].tools
        listed = await self._connections[name].tools()
        if chosen is not None:
            missing = set(chosen) - {tool.name for tool in listed}
            if missing:
                raise ToolServerError(f"{name} has no tool {', '.join(sorted(missing))}, which mcp.json offers.")
            listed = [tool for tool in listed if tool.name in chosen]
        if len(listed) > MAX_TOOLS_PER_SERVER:
            raise ToolServerError(
                f"{name} has {len(listed)} tools, more than the {MAX_TOOLS_PER_SERVER} that are offered. Name those to "
                'offer in mcp.json, as "tools": [...].'
            )
        offered = [OfferedTool(name, tool) for tool in listed]
        for tool in listed:
            if (reason := _unusable(tool.parameters)) is not None:
                raise ToolServerError(f"The arguments of {name}'s tool {tool.name} have a schema that {reason}.")
        if len({one.name for one in offered}) < len(offered):
            raise ToolServerError(f"Two tools of {name} have the same name in the characters that models are given.")
        return offered


def _unusable(schema: Mapping[str, Any]) -> str | None:
    """Why a tool's schema cannot be shown to a model; None if it can.

    The engine would refuse it with every message of a chat that has the tool.
    """
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        return "is too large"
    if schema.get("type", "object") != "object":
        return "is of no object"
    if (name := next((name for name in _names_in(schema) if _CONTROL_TOKEN.search(name)), None)) is not None:
        return f"names {name[:64]!r}, which looks like a control token of a model"
    return None


def _names_in(value: Any) -> Iterator[str]:
    """Yields the names of all members in a JSON value."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield name
            yield from _names_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from _names_in(one)


def _maker(server: McpServer, egress: EgressPolicy) -> Callable[[], AbstractAsyncContextManager[Client]]:
    """Returns a function that makes clients of a server."""
    if isinstance(server, StdioServer):
        return partial(_stdio_client, server)
    return partial(_http_client, server, egress)


def _stdio_client(server: StdioServer) -> AbstractAsyncContextManager[Client]:
    from mcp import Client, StdioServerParameters

    return Client(
        StdioServerParameters(
            command=server.command, args=list(server.args), env=dict(server.env) or None, cwd=server.cwd
        )
    )


@asynccontextmanager
async def _http_client(server: HttpServer, egress: EgressPolicy) -> AsyncGenerator[Client]:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    from app.egress.client import checked_client

    async with (
        checked_client(egress, headers=server.headers, timeout_s=server.timeout_seconds) as http,
        Client(streamable_http_client(server.url, http_client=http)) as client,
    ):
        yield client
