"""Batches the checkpoints and final writes of replies into shared transactions of precompiled statements.

With many replies in flight these are most of the database's load, and they compete with the engine for the
CPU: compiling a statement costs more than executing it, and a transaction costs more than both.

Group commit (:mod:`app.store.db.group_commit`) does not replace this: it shares a transaction among any writes on
SQLite, each with statements of its own, while this merges the statements of writes of one kind, on both databases.
PostgreSQL has no group commit: there, the checkpoints of one tick would be a transaction each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, NamedTuple

from sqlalchemy import ARRAY, JSON, Connection, String, Table, any_, bindparam, func, select, true, update

from app.domain.gaps import GapReason
from app.domain.tool_use import ToolUse
from app.domain.views import MessageStatus, Reasoning, ReplyStats
from app.store.chat.gap_writes import write_gap
from app.store.db.database import Database, is_postgres
from app.store.db.models import Conversation, Message, Turn, table_of
from app.store.db.notifications import Channel
from app.store.db.prepared_statements import Prepared, update_of


class LeaseStatus(Enum):
    """A turn's status for the process that writes it."""

    RUNNING = auto()
    STOP_REQUESTED = auto()  #: a stop was requested
    LOST = auto()  #: deleted, or owned by another process: nothing is written


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """How a reply ended."""

    text: str
    status: MessageStatus
    stats: ReplyStats | None = None
    error: str | None = None
    token_ids: tuple[int, ...] = ()  #: of the text; empty if unknown
    reasoning: Reasoning | None = None
    tool_uses: tuple[ToolUse, ...] = ()
    collections: tuple[str, ...] = ()  #: that were searched for its sources
    gap: GapReason | None = None  #: why they do not answer its question


@dataclass(frozen=True, slots=True)
class ReplyWrite:
    """A pending write of one reply."""

    user_id: str
    turn_id: str
    text: str | None = None  #: the text so far; None renews the lease only
    outcome: TurnOutcome | None = None  #: set if the reply has ended
    reasoning: Reasoning | None = None  #: the thinking so far; None leaves it as it is
    tool_uses: tuple[ToolUse, ...] | None = None  #: the calls of tools so far; None leaves them as they are


class ReplyWriter:
    """Collects replies' writes during a transaction and writes them in the next one. Belongs to one event loop.

    Args:
        owner: id of this start of the process. Turns with another owner are not written.
        lease_seconds: how long a turn belongs to its owner after each write.
    """

    def __init__(self, database: Database, owner: str, lease_seconds: float) -> None:
        self._database = database
        self._owner = owner
        self._lease = timedelta(seconds=lease_seconds)
        self._waiting: list[tuple[ReplyWrite, asyncio.Future[LeaseStatus]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, write: ReplyWrite) -> LeaseStatus:
        """Writes ``write`` in the next batch. ``LOST``: nothing was written. A cancelled caller's write may be dropped.

        Raises:
            StorageUnavailable: the whole batch failed; nothing was written.
        """
        written: asyncio.Future[LeaseStatus] = asyncio.get_running_loop().create_future()
        self._waiting.append((write, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_waiting(), name="reply writes")
        return await written

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # several replies' timers fire at the same moment
                batch = [(write, written) for write, written in self._waiting if not written.done()]
                self._waiting = []
                if batch:  # otherwise all callers were cancelled
                    await self._write_batch(batch)
        finally:
            self._writing = None
            for _, written in self._waiting:
                written.cancel()

    async def _write_batch(self, batch: Sequence[tuple[ReplyWrite, asyncio.Future[LeaseStatus]]]) -> None:
        writes = [write for write, _ in batch]
        try:
            statuses = await self._database.write_rows(lambda connection: self._transaction(connection, writes))
        except BaseException as error:
            for _, written in batch:
                if not written.done():
                    written.set_exception(error) if isinstance(error, Exception) else written.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for write, written in batch:
            if not written.done():
                written.set_result(statuses.get(write.turn_id, LeaseStatus.LOST))

    def _transaction(self, connection: Connection, writes: Sequence[ReplyWrite]) -> dict[str, LeaseStatus]:
        postgres = is_postgres(connection)
        parameters = {"owner": self._owner, "turns": [write.turn_id for write in writes]}
        # Turns first: their row locks decide who may write and hold back a late checkpoint.
        rows = (_OWN_TURNS_POSTGRES if postgres else _OWN_TURNS).rows(connection, parameters)
        found = {(row.id, row.user_id): row for row in (_RunningTurn(*row) for row in rows)}
        todo = [(write, found[key]) for write in writes if (key := (write.turn_id, write.user_id)) in found]
        now = (todo[0][1].now if todo else None) or datetime.now(UTC)
        turns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        messages: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for write, row in todo:
            turn, message = self._values(write, now)
            turns.setdefault(tuple(turn), []).append({"key": row.id, **turn})
            if message:
                messages.setdefault(tuple(message), []).append({"key": row.message_id, **message})
        _update(connection, _TURN, turns)
        _update(connection, _MESSAGE, messages)
        ended = [row.conversation_id for write, row in todo if write.outcome is not None]
        if ended:
            _UNREAD.run_each(connection, [{"key": id} for id in sorted(ended)])
        for write, row in todo:  # after the conversations are locked, in their order
            if write.outcome is not None and write.outcome.collections:
                outcome = write.outcome
                write_gap(connection, row.message_id, row.conversation_id, outcome.gap, outcome.collections)
        grown = [write.turn_id for write, _ in todo if write.outcome is not None or write.text is not None]
        if grown and postgres:
            _NOTIFY.rows(connection, {"channel": Channel.CHANGED.value, "turns": grown})
        return {
            row.id: LeaseStatus.RUNNING if row.stop_requested_at is None else LeaseStatus.STOP_REQUESTED
            for _, row in todo
        }

    def _values(self, write: ReplyWrite, now: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
        """New column values of the turn's and the message's row."""
        outcome = write.outcome
        if outcome is None:
            turn: dict[str, Any] = {"heartbeat_at": datetime.now(UTC), "lease_until": now + self._lease}
            if write.text is None:
                return turn, {}
            turn["checkpoint_offset"] = len(write.text)
            message = {"content": write.text, "status": MessageStatus.STREAMING, **_reasoning(write.reasoning)}
            return turn, message if write.tool_uses is None else message | {"tool_uses": write.tool_uses}
        return ended_turn(outcome, datetime.now(UTC)), ended_message(outcome)


def ended_turn(outcome: TurnOutcome, now: datetime) -> dict[str, Any]:
    """The column values of a turn whose reply has ended."""
    turn = {
        "status": outcome.status,
        "error": outcome.error,
        "heartbeat_at": now,
        "ended_at": now,
        "checkpoint_offset": len(outcome.text),
    }
    return turn if outcome.stats is None else turn | asdict(outcome.stats)


def ended_message(outcome: TurnOutcome) -> dict[str, Any]:
    """The column values of a reply that has ended."""
    message = {"content": outcome.text, "status": outcome.status, "token_ids": outcome.token_ids}
    if outcome.tool_uses:
        message["tool_uses"] = outcome.tool_uses
    return message | _reasoning(outcome.reasoning)


def _reasoning(reasoning: Reasoning | None) -> dict[str, Any]:
    """The column values of a reply's thinking; none, where it stays as it is."""
    return {} if reasoning is None else {"reasoning": reasoning.text, "reasoning_seconds": reasoning.seconds}


_TURN = table_of(Turn)
_MESSAGE = table_of(Message)
_CONVERSATION = table_of(Conversation)


class _RunningTurn(NamedTuple):
    """A running turn of this process."""

    id: str
    message_id: str
    conversation_id: str
    user_id: str
    stop_requested_at: datetime | None
    now: datetime | None = None  #: the database's time, on PostgreSQL


_RUNNING = (
    select(_TURN.c.id, _TURN.c.message_id, _TURN.c.conversation_id, _CONVERSATION.c.user_id, _TURN.c.stop_requested_at)
    .join(_CONVERSATION, _CONVERSATION.c.id == _TURN.c.conversation_id)
    .where(_TURN.c.status == "running", _TURN.c.owner == bindparam("owner"))
)
# One JSON parameter keeps the statement's text the same for any number of turns.
_OWN_TURNS = Prepared(
    _RUNNING.where(_TURN.c.id.in_(select(func.json_each(bindparam("turns", type_=JSON)).table_valued("value").c.value)))
)
#: Locks the rows, always in the same order.
_OWN_TURNS_POSTGRES = Prepared(
    _RUNNING.add_columns(func.now())
    .where(_TURN.c.id == any_(bindparam("turns", type_=ARRAY(String))))
    .order_by(_TURN.c.id)
    .with_for_update(of=_TURN)
)
_UNREAD = Prepared(update(_CONVERSATION).where(_CONVERSATION.c.id == bindparam("key")).values(unread=true()))
_NOTIFY = Prepared(
    select(func.pg_notify(bindparam("channel", type_=String), func.unnest(bindparam("turns", type_=ARRAY(String)))))
)


def _update(connection: Connection, table: Table, rows: dict[tuple[str, ...], list[dict[str, Any]]]) -> None:
    """Updates rows by id, one batch per set of columns."""
    for columns, values in rows.items():
        update_of(table, columns).run_each(connection, values)
