"""The tools that a chat's model is offered, and calls of them: lists are cached, and no server is waited for long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from app.domain.text import clean_text
from app.domain.tool_use import ToolUse, ToolUseStatus
from app.tools.connection import ToolServerError
from app.tools.results import MAX_RESULT_CHARS, shortened
from app.tools.servers import OfferedTool, ServerStatus, ToolServers
from engine import Tool

_log = logging.getLogger(__name__)

LIST_SECONDS = 60.0
"""How long a server's list of tools is used before it is asked for again."""
WAIT_SECONDS = 3.0
"""How long a message waits for lists that are not there yet; a server that is later than that is left out of it."""
MAX_OFFERED = 128
"""Tools that one reply is offered."""


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that one reply is offered."""

    tools: tuple[Tool, ...] = ()
    approved: frozenset[str] = frozenset()  #: names of those that are called without asking the user
    servers: frozenset[str] = frozenset()  #: whose tools may be called, also of those that cannot be listed now


class ChatTools:
    """The tools of all servers, for chats. Belongs to one event loop."""

    def __init__(self, servers: ToolServers) -> None:
        self._servers = servers
        self._listed: dict[str, tuple[float, ServerStatus]] = {}
        self._listing: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the servers, in the order of mcp.json."""
        return self._servers.names

    async def statuses(self) -> list[ServerStatus]:
        """All servers with their tools, or with the reason why they have none now."""
        await self._refresh(self.names)
        return [self._listed[name][1] if name in self._listed else _unanswered(name) for name in self.names]

    def is_auto_approved(self, tool: OfferedTool) -> bool:
        """Whether the operator lets chats call the tool without asking the user."""
        return self._servers.is_auto_approved(tool)

    async def offered(self, servers: Collection[str]) -> OfferedTools:
        """Returns the tools of these servers. One that cannot be used has none."""
        wanted = [name for name in self.names if name in servers]
        await self._refresh(wanted)
        found: list[OfferedTool] = []
        for name in wanted:
            found += self._listed[name][1].tools if name in self._listed else ()
        if len(found) > MAX_OFFERED:
            _log.warning("a chat is offered %d of %d tools", MAX_OFFERED, len(found))
        found = found[:MAX_OFFERED]
        approved = frozenset(one.name for one in found if self.is_auto_approved(one))
        return OfferedTools(tuple(one.for_engine() for one in found), approved, frozenset(wanted))

    async def run(
        self, use: ToolUse, servers: Collection[str], max_chars: int = MAX_RESULT_CHARS, *, user_id: str
    ) -> ToolUse:
        """Calls a tool. Whatever goes wrong is the call's result, which the model and the user are told.

        Args:
            servers: whose tools may be called.
            max_chars: length at which the result is cut.
            user_id: of the chat.
        """
        if self._servers.server_of(use.name) not in servers:
            return replace(use, status=ToolUseStatus.FAILED, result=f"There is no tool {use.name} in this chat.")
        started = time.monotonic()
        try:
            result = await self._servers.call(use.name, use.arguments, user_id)
        except ToolServerError as error:
            text, status = str(error), ToolUseStatus.FAILED
        else:
            text, status = result.text, ToolUseStatus.FAILED if result.is_error else ToolUseStatus.DONE
        return replace(
            use,
            status=status,
            result=clean_text(shortened(text, max_chars)),
            seconds=round(time.monotonic() - started, 2),
        )

    async def close(self) -> None:
        """Ends all connections."""
        for task in self._listing.values():
            task.cancel()
        await asyncio.gather(*self._listing.values(), return_exceptions=True)
        await self._servers.close()

    async def _refresh(self, names: Sequence[str]) -> None:
        """Lists the tools of servers whose lists are missing or old, and waits for the missing ones."""
        now = time.monotonic()
        for name in names:
            is_fresh = name in self._listed and now - self._listed[name][0] < LIST_SECONDS
            if not is_fresh and name not in self._listing:
                task = asyncio.create_task(self._list(name), name=f"list the tools of {name}")
                self._listing[name] = task
        missing = [self._listing[name] for name in names if name in self._listing and name not in self._listed]
        if missing:
            await asyncio.wait(missing, timeout=WAIT_SECONDS)

    async def _list(self, name: str) -> None:
        try:
            status = await self._servers.status(name)
            if status.problem:
                _log.warning("a tool server is left out: %s", status.problem)
            self._listed[name] = time.monotonic(), status
        finally:
            del self._listing[name]


def _unanswered(name: str) -> ServerStatus:
    return ServerStatus(name, problem=f"{name} has not answered yet.")
