"""Batches the checkpoints and final writes of replies into shared transactions of precompiled statements.

With many replies in flight these are most of the database's load, and they compete with the engine for the
CPU: compiling a statement costs more than executing it, and a transaction costs more than both.

Group commit (:mod:`app.store.db.group_commit`) does not replace this: it shares a transaction among any writes on
SQLite, each with statements of its own, while this merges the statements of writes of one kind, on both databases.
PostgreSQL has no group commit: there, the checkpoints of one tick would be a transaction each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import JSON, ColumnElement, Connection, Interval, Table, bindparam, func, literal, select, true, update

from app.domain.gaps import GapReason
from app.domain.tool_use import ToolUse
from app.domain.views import MessageStatus, Reasoning, ReplyStats
from app.store.chat.gap_writes import write_gap
from app.store.db.database import Database
from app.store.db.models import Conversation, Message, Turn, table_of
from app.store.db.notifications import Channel
from app.store.db.prepared_statements import JsonRows, Prepared, update_of
from app.store.db.rows import RUNNING


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


class _Pending(NamedTuple):
    """A write that waits, with its new column values, but for the lease."""

    write: ReplyWrite
    of_turn: dict[str, Any]
    of_message: dict[str, Any]
    written: asyncio.Future[LeaseStatus]

    @property
    def collections(self) -> tuple[str, ...]:
        """Those of a reply that has ended with sources, which may leave a gap."""
        return () if self.write.outcome is None else self.write.outcome.collections

    @property
    def kind(self) -> _Kind:
        return _Kind(tuple(self.of_turn), tuple(self.of_message), has_ended=self.write.outcome is not None)


class _Kind(NamedTuple):
    """Writes that PostgreSQL can make with one statement: those that set the same columns."""

    of_turn: tuple[str, ...]
    of_message: tuple[str, ...]
    has_ended: bool


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
        self._waiting: list[_Pending] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, write: ReplyWrite) -> LeaseStatus:
        """Writes ``write`` in the next batch. ``LOST``: nothing was written. A cancelled caller's write may be dropped.

        Raises:
            StorageUnavailable: the transaction failed; nothing was written.
        """
        written: asyncio.Future[LeaseStatus] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Pending(write, *_values(write), written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_waiting(), name="reply writes")
        return await written

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # several replies' timers fire at the same moment
                batch = [one for one in self._waiting if not one.written.done()]  # the callers of others were cancelled
                self._waiting = []
                await asyncio.gather(*(self._write_batch(one) for one in self._transactions(batch)))
        finally:
            self._writing = None
            for one in self._waiting:
                one.written.cancel()

    def _transactions(self, batch: Sequence[_Pending]) -> Collection[Sequence[_Pending]]:
        """Distributes writes among transactions: all share one on SQLite, those of one kind on PostgreSQL."""
        transactions: dict[_Kind | None, list[_Pending]] = {}
        for one in batch:
            transactions.setdefault(one.kind if self._database.is_postgres else None, []).append(one)
        return transactions.values()

    async def _write_batch(self, batch: Sequence[_Pending]) -> None:
        try:
            statuses = await self._statuses(batch)
        except BaseException as error:
            for one in batch:
                if not one.written.done():
                    one.written.set_exception(error) if isinstance(error, Exception) else one.written.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for one in batch:
            if not one.written.done():
                one.written.set_result(statuses.get(one.write.turn_id, LeaseStatus.LOST))

    async def _statuses(self, batch: Sequence[_Pending]) -> dict[str, LeaseStatus]:
        """Writes a batch. Returns the status of each turn that was written."""
        if not self._database.is_postgres:
            return await self._database.write_rows(lambda connection: self._on_sqlite(connection, batch))
        last = {one.write.turn_id: one for one in batch}  # of two writes of one turn, the later one holds
        kind = batch[0].kind
        statement, parameters = _write_statement(kind), self._parameters(kind, last.values())
        if not any(one.collections for one in batch):
            return _statuses(await self._database.write_statement(statement, parameters))

        def with_gaps(connection: Connection) -> dict[str, LeaseStatus]:
            rows = statement.rows(connection, parameters)
            for row in _running_turns(rows):  # the conversations are locked, in their order
                _write_gap(connection, last[row.id], row)
            return _statuses(rows)

        return await self._database.write_rows(with_gaps)

    def _on_sqlite(self, connection: Connection, batch: Sequence[_Pending]) -> dict[str, LeaseStatus]:
        rows = _OWN_TURNS.rows(connection, {"owner": self._owner, "turns": [one.write.turn_id for one in batch]})
        found = {(turn[0], user_id): _RunningTurn(*turn) for *turn, user_id in rows}
        todo = [(one, found[key]) for one in batch if (key := (one.write.turn_id, one.write.user_id)) in found]
        turns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        messages: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        lease = {"lease_until": datetime.now(UTC) + self._lease}
        for one, row in todo:
            turn = one.of_turn if one.write.outcome is not None else one.of_turn | lease
            turns.setdefault(tuple(turn), []).append({"key": row.id, **turn})
            if one.of_message:
                messages.setdefault(tuple(one.of_message), []).append({"key": row.message_id, **one.of_message})
        _update(connection, _TURN, turns)
        _update(connection, _MESSAGE, messages)
        ended = [row.conversation_id for one, row in todo if one.write.outcome is not None]
        if ended:
            _UNREAD.run_each(connection, [{"key": id} for id in ended])
        for one, row in todo:
            _write_gap(connection, one, row)
        return {row.id: row.lease_status for _, row in todo}

    def _parameters(self, kind: _Kind, writes: Iterable[_Pending]) -> dict[str, Any]:
        values = [
            (one.write.turn_id, one.write.user_id, *one.of_turn.values(), *one.of_message.values()) for one in writes
        ]
        return {"owner": self._owner, "lease": self._lease, "written": _written_columns(kind).parameter(values)}


def _values(write: ReplyWrite) -> tuple[dict[str, Any], dict[str, Any]]:
    """New column values of the turn's and the message's row, without the lease."""
    outcome, now = write.outcome, datetime.now(UTC)
    if outcome is not None:
        return ended_turn(outcome, now), ended_message(outcome)
    if write.text is None:
        return {"heartbeat_at": now}, {}
    message = {"content": write.text, "status": MessageStatus.STREAMING, **_reasoning(write.reasoning)}
    if write.tool_uses is not None:
        message["tool_uses"] = write.tool_uses
    return {"heartbeat_at": now, "checkpoint_offset": len(write.text)}, message


def _write_gap(connection: Connection, written: _Pending, row: _RunningTurn) -> None:
    if written.collections and (outcome := written.write.outcome) is not None:
        write_gap(connection, row.message_id, row.conversation_id, outcome.gap, outcome.collections)


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
    stop_requested_at: datetime | None

    @property
    def lease_status(self) -> LeaseStatus:
        return LeaseStatus.RUNNING if self.stop_requested_at is None else LeaseStatus.STOP_REQUESTED


def _running_turns(rows: Iterable[tuple[Any, ...]]) -> list[_RunningTurn]:
    return [_RunningTurn(*row[: len(_RunningTurn._fields)]) for row in rows]


def _statuses(rows: Iterable[tuple[Any, ...]]) -> dict[str, LeaseStatus]:
    return {row.id: row.lease_status for row in _running_turns(rows)}


_RUNNING_TURNS = select(*(_TURN.c[name] for name in _RunningTurn._fields)).where(
    _TURN.c.status == RUNNING, _TURN.c.owner == bindparam("owner")
)
# A lookup by the conversation's id: a join may read all conversations of the user.
_USER = (
    select(_CONVERSATION.c.user_id)
    .where(_CONVERSATION.c.id == _TURN.c.conversation_id)
    .correlate(_TURN)
    .scalar_subquery()
)
# One JSON parameter keeps the statement's text the same for any number of turns.
_OWN_TURNS = Prepared(
    _RUNNING_TURNS.add_columns(_USER).where(
        _TURN.c.id.in_(select(func.json_each(bindparam("turns", type_=JSON)).table_valued("value").c.value))
    )
)
_UNREAD = Prepared(update(_CONVERSATION).where(_CONVERSATION.c.id == bindparam("key")).values(unread=true()))


@cache
def _written_columns(kind: _Kind) -> JsonRows:
    """A write as PostgreSQL reads it: whose, the new values of its turn, and those of its message."""
    ids = {"turn_id": _TURN.c.id.type, "user_id": _CONVERSATION.c.user_id.type}
    of_turn = {f"turn_{name}": _TURN.c[name].type for name in kind.of_turn}
    of_message = {f"message_{name}": _MESSAGE.c[name].type for name in kind.of_message}
    return JsonRows("written", ids | of_turn | of_message)


@cache
def _write_statement(kind: _Kind) -> Prepared:
    """PostgreSQL's statement for writes of one kind. Returns the :class:`_RunningTurn` of each, if it is written.

    All in one statement: a round trip takes as long as a database thread waits for its next turn on the CPU.
    """
    written = _written_columns(kind).table
    # Turns first: their row locks decide who may write and hold back a late checkpoint. Always in the same order.
    owned = (
        _RUNNING_TURNS.add_columns(*list(written.c)[2:])
        .where(_TURN.c.id == written.c.turn_id, written.c.user_id == _USER)
        .order_by(_TURN.c.id)
        .with_for_update(of=_TURN)
        .cte("owned")
    )
    turn: dict[str, Any] = {name: owned.c[f"turn_{name}"] for name in kind.of_turn}
    if not kind.has_ended:
        # By the database's clock, because processes on different machines compare it.
        turn["lease_until"] = func.now() + bindparam("lease", type_=Interval)
    changes = [update(_TURN).where(_TURN.c.id == owned.c.id).values(turn).cte("turns")]
    if kind.of_message:
        message = {name: owned.c[f"message_{name}"] for name in kind.of_message}
        changes.append(update(_MESSAGE).where(_MESSAGE.c.id == owned.c.message_id).values(message).cte("messages"))
    if kind.has_ended:
        ended = select(_CONVERSATION.c.id).where(_CONVERSATION.c.id.in_(select(owned.c.conversation_id)))
        locked = ended.order_by(_CONVERSATION.c.id).with_for_update(key_share=True).cte("locked")
        unread = update(_CONVERSATION).where(_CONVERSATION.c.id == locked.c.id).values(unread=true())
        changes.append(unread.cte("conversations"))
    result: list[ColumnElement[Any]] = [owned.c[name] for name in _RunningTurn._fields]
    if kind.of_message:  # it has grown or ended
        result.append(func.pg_notify(literal(Channel.CHANGED.value), owned.c.id))
    return Prepared(select(*result).add_cte(*changes))


def _update(connection: Connection, table: Table, rows: dict[tuple[str, ...], list[dict[str, Any]]]) -> None:
    """Updates rows by id, one batch per set of columns."""
    for columns, values in rows.items():
        update_of(table, columns).run_each(connection, values)
