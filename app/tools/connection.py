"""A connection to one MCP server: opened at the first use, and again after it broke."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from app.egress.policy import EgressRefusedError
from app.tools.call_slots import CallSlots
from app.tools.results import ToolResult, to_result

if TYPE_CHECKING:
    from mcp import Client

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 20.0
"""Seconds for a server to start and to answer."""
CLOSE_TIMEOUT_S = 10.0
"""Seconds for connections that were given up to end."""
RETRY_SECONDS = 10.0
"""Seconds in which a server that could not be reached is not tried again: each try holds up a reply."""
IDLE_SECONDS = 30.0
"""After this long without a call a server is asked whether it is still there, before a call is sent to it."""
PING_TIMEOUT_S = 5.0
MAX_PAGES = 16
"""Pages of a list of tools that are read."""
CONNECTION_CLOSED = -32000
"""MCP's error code of a connection that ended; ``mcp_types`` has it, but is imported only when it is needed."""
MAX_CONCURRENT_CALLS = 8
"""Calls of one server's tools that run at a time, of one user half as many; others wait, and their time counts."""


class ToolServerError(Exception):
    """A server cannot be used, or a call did not succeed; says why."""


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool as its server describes it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    is_read_only: bool  #: by the server's own word


T = TypeVar("T")


@dataclass(slots=True)
class _Session:
    """An open connection. The task that opened it closes it, as the transports demand."""

    client: Client
    owner: asyncio.Task[None]
    closing: asyncio.Event
    used_at: float  #: time.monotonic of the last answer; -inf if the last one was wrong

    async def close(self) -> None:
        self.closing.set()
        await asyncio.wait([self.owner])


class Connection:
    """One server, shared by all users.

    Args:
        name: of the server, for errors.
        make_client: makes a client that is not yet connected.
        timeout_s: seconds that a call may take.
    """

    def __init__(
        self, name: str, make_client: Callable[[], AbstractAsyncContextManager[Client]], timeout_s: float
    ) -> None:
        self.name = name
        self._make_client = make_client
        self._timeout_s = timeout_s
        self._session: _Session | None = None
        self._owners: set[asyncio.Task[None]] = set()  # of this session, and of others that still end
        self._opening = asyncio.Lock()
        self._slots = CallSlots(MAX_CONCURRENT_CALLS)
        self._failed_at: float | None = None
        self._failure = ""

    async def tools(self) -> list[ServerTool]:
        """Lists the server's tools.

        Raises:
            ToolServerError: it cannot be reached, or answers wrongly.
        """
        return await self._use(_list_tools, CONNECT_TIMEOUT_S)

    async def call(self, tool: str, arguments: dict[str, Any], user_id: str | None = None) -> ToolResult:
        """Calls a tool, for a user.

        Raises:
            ToolServerError: the server cannot be reached, refuses the call, or takes longer than the timeout.
        """

        async def call(client: Client) -> ToolResult:
            return to_result(await client.call_tool(tool, arguments))

        return await self._use(call, self._timeout_s, user_id)

    async def close(self) -> None:
        """Ends the connection; a server that is a program ends with it."""
        async with self._opening:
            session, self._session = self._session, None
            if session is not None:
                await session.close()
            if self._owners:  # of attempts that were given up: a program that does not end by itself is killed there
                await asyncio.wait(self._owners, timeout=CLOSE_TIMEOUT_S)

    async def _use(self, act: Callable[[Client], Awaitable[T]], timeout_s: float, user_id: str | None = None) -> T:
        from mcp import MCPError

        session: _Session | None = None
        try:
            async with asyncio.timeout(timeout_s), self._slots.slot(user_id):
                session = await self._open()
                result = await act(session.client)
                session.used_at = time.monotonic()
                return result
        except TimeoutError as error:
            raise ToolServerError(f"{self.name} did not answer within {timeout_s:g} seconds.") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                await self._drop(session)
            raise ToolServerError(f"{self.name}: {error}") from error
        except ToolServerError:
            raise
        except Exception as error:  # a server may answer anything, and each transport raises errors of its own
            # A wrong answer breaks no connection, which calls of other users may share: the next call checks it.
            if session is not None:
                session.used_at = -math.inf
            raise ToolServerError(f"{self.name} cannot be used: {_reason(error)}") from error

    async def _open(self) -> _Session:
        """Returns the open session, or opens one.

        Raises:
            ToolServerError: the server cannot be reached, or could not a moment ago.
        """
        async with self._opening:
            session = self._session
            if session is not None and (session.owner.done() or not await _answers(session)):
                self._session = None
                await session.close()
            if self._session is None:
                if self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_SECONDS:
                    raise ToolServerError(self._failure)
                self._session = await self._connect()
            return self._session

    async def _connect(self) -> _Session:
        closing = asyncio.Event()
        connected: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        owner = asyncio.create_task(self._own(connected, closing), name=f"tools of {self.name}")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                client = await asyncio.shield(connected)
        except BaseException as error:
            owner.cancel()
            if isinstance(error, Exception):
                what = "did not start in time" if isinstance(error, TimeoutError) else _reason(error)
                self._failed_at, self._failure = time.monotonic(), f"{self.name} cannot be reached: {what}"
                raise ToolServerError(self._failure) from error
            raise
        self._failed_at = None
        return _Session(client, owner, closing, time.monotonic())

    async def _own(self, connected: asyncio.Future[Client], closing: asyncio.Event) -> None:
        """Opens a connection, hands its client over, and closes it when told to."""
        try:
            async with self._make_client() as client:
                connected.set_result(client)
                await closing.wait()
        except Exception as error:
            if connected.done():
                log.warning("the connection to %s broke: %s", self.name, _reason(error))
            else:
                connected.set_exception(error)

    async def _drop(self, session: _Session | None) -> None:
        """Closes a broken session, so that the next call opens another."""
        async with self._opening:
            if session is not None and session is self._session:
                self._session = None
                await session.close()


async def _answers(session: _Session) -> bool:
    """Whether the server is still there; asked only after some idle time."""
    if time.monotonic() - session.used_at < IDLE_SECONDS:
        return True
    try:
        async with asyncio.timeout(PING_TIMEOUT_S):
            await session.client.list_tools(cache_mode="bypass")  # newer revisions of MCP have no ping
    except Exception as error:
        log.info("a tool server no longer answers: %s", _reason(error))
        return False
    return True


async def _list_tools(client: Client) -> list[ServerTool]:
    found: list[ServerTool] = []
    cursor: str | None = None
    for _page in range(MAX_PAGES):
        listed = await client.list_tools(cursor=cursor, cache_mode="bypass")
        for tool in listed.tools:
            read_only = bool(tool.annotations is not None and tool.annotations.read_only_hint)
            found.append(ServerTool(tool.name, tool.description or "", tool.input_schema, read_only))
        cursor = listed.next_cursor
        if cursor is None:
            break
    return found


def _reason(error: BaseException) -> str:
    """Returns the message of an error, or of the first one in a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, EgressRefusedError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
    return str(error).partition("\n")[0] or type(error).__name__
