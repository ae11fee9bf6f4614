"""Writes turns: their start in one transaction, checkpoints, and their end."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_modified

from app.domain.chat_settings import ChatSettings
from app.domain.knowledge import Passage
from app.domain.tool_use import ToolUse
from app.domain.views import MessageStatus, Reasoning, ReplyStats
from app.errors import Conflict, NotFound
from app.store.chat.begin_statement import begin_statement
from app.store.chat.conversations import settings_row
from app.store.chat.leases import lease_until
from app.store.chat.new_turns import (
    NewTurn,
    conversation_values,
    insert_conversation,
    insert_turn,
    lock_and_update,
    message_values,
    turn_values,
)
from app.store.chat.reply_writes import LeaseStatus, ReplyWrite, ReplyWriter, TurnOutcome
from app.store.chat.turn_contexts import BUSY, PartialReply, is_running, resumable_turn
from app.store.db.database import Database
from app.store.db.models import Conversation, Message, Turn
from app.store.db.notifications import Channel, notify
from app.store.db.prepared_statements import Prepared
from app.store.db.rows import is_id, owned_conversation, owned_message, reply_stats

Result = TypeVar("Result")


class NotBegun(Exception):
    """Something is in the way of a message, or what it was based on has changed: nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """A turn and its reply as stored."""

    turn_id: str
    conversation_id: str
    user_message_id: str | None
    message_id: str
    omitted_messages: int
    context_length: int | None
    model: str
    has_system_prompt: bool
    text: str
    status: MessageStatus
    stats: ReplyStats | None
    error: str | None
    reasoning: str = ""
    reasoning_seconds: float | None = None
    tool_uses: tuple[ToolUse, ...] = ()
    sources: tuple[Passage, ...] = ()


_TURN_EXISTS = Prepared(select(Turn.id).where(Turn.id == bindparam("id")))
_NOT_UNIQUE = ("SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE")


class TurnRecords:
    """The repository of turns.

    Args:
        owner: id of this start of the process. Turns with another owner are not written.
        lease_seconds: how long a turn belongs to its owner after each write.
    """

    def __init__(self, database: Database, owner: str, lease_seconds: float) -> None:
        self._database = database
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._lease_time = timedelta(seconds=lease_seconds)
        self._writes = ReplyWriter(database, owner, lease_seconds)

    async def resume(self, user_id: str, new: NewTurn) -> datetime:
        """Runs the turn ``new.turn_id`` again to write the rest of its reply.

        Returns the conversation's ``updated_at``, as :meth:`begin`.

        Raises:
            NotFound: the reply is gone.
            Conflict: a reply is being written in the conversation, or this one has changed since it was read.
            InvalidInput: the reply can no longer be resumed.
        """
        now = datetime.now(UTC)

        def work(session: Session) -> None:
            conversation = owned_conversation(session, user_id, new.conversation_id, lock=True)
            if is_running(session.connection(), conversation.id):
                raise Conflict(BUSY)
            message = owned_message(session, user_id, new.message_id)
            turn = resumable_turn(session, message, decides=new.decides)
            if _has_changed(message, new.partial_reply):
                raise Conflict("This reply has changed elsewhere. Reload it, then continue it.")
            message.status, message.indexed = MessageStatus.STREAMING, False
            flag_modified(message, "indexed")  # it may be being indexed, and be marked as indexed meanwhile
            message.tool_uses = new.tool_uses
            if new.newly_allowed:
                both = (*(conversation.allowed_tools or ()), *new.newly_allowed)
                conversation.allowed_tools = list(dict.fromkeys(both))
            turn.status, turn.owner, turn.heartbeat_at = "running", self._owner, now
            turn.lease_until = self._lease(session)
            turn.ended_at = turn.error = turn.finish_reason = turn.stop_requested_at = None
            turn.model, turn.params, turn.seed = new.model, settings_row(new.settings), new.seed
            turn.omitted_messages, turn.context_length = new.omitted_messages, new.context_length
            conversation.tip_message_id = message.id
            conversation.updated_at = now
            if new.save_settings:
                conversation.settings = settings_row(new.settings)
            notify(session, Channel.CHANGED, turn.id)

        await self._start(self._database.write(work))
        return now

    async def begin(self, user_id: str, new: NewTurn) -> datetime:
        """Writes the (conversation,) message, empty reply and running turn, all or nothing.

        Returns the conversation's ``updated_at``, which every start of a reply changes.

        Raises:
            NotFound: the conversation, or the message before this one, is gone.
            Conflict: a reply is being written there, or the tip has changed.
        """
        return await self.begin_comparison(user_id, [new])

    async def begin_unread(
        self, user_id: str, new: NewTurn, *, read_as_of: datetime | None, max_running: int | None
    ) -> datetime:
        """As :meth:`begin`, for a message whose checks were left to the database. PostgreSQL only.

        Args:
            new: a message that begins a conversation, or follows its tip.
            read_as_of: the conversation's ``updated_at`` when it was as this process knows it; None: it was just read.
            max_running: the most replies of the user that may be running; None: they were counted.

        Raises:
            NotBegun: something is in its way, or the conversation has changed.
            Conflict: a reply has begun just now, or this turn had begun before.
        """
        now = datetime.now(UTC)
        values = conversation_values(user_id, new, now)
        if not await self._begin_at_once(user_id, new, values, now, read_as_of, max_running):
            raise NotBegun
        return now

    @property
    def can_begin_unread(self) -> bool:
        """Whether there is :meth:`begin_unread`."""
        return self._database.is_postgres

    async def begin_comparison(self, user_id: str, compared: Sequence[NewTurn]) -> datetime:
        """As :meth:`begin`, for several replies to one message. The first creates the message, and is shown.

        Raises:
            NotFound, Conflict: as :meth:`begin`.
        """
        now = datetime.now(UTC)
        new = compared[0]
        values = conversation_values(user_id, new, now)

        def work(connection: Connection) -> None:
            if new.title is not None:
                insert_conversation(connection, values)
            else:
                lock_and_update(connection, user_id, new, values)
            for each in compared:
                insert_turn(connection, each, self._owner, now, self._lease_time)

        is_after_tip = new.parent_is_tip and new.parent_id is not None
        is_one_message = len(compared) == 1 and new.text is not None and (new.title is not None or is_after_tip)
        is_simple = is_one_message and self._database.is_postgres
        if is_simple and await self._begin_at_once(user_id, new, values, now):
            return now
        # If something is in its way, the transaction raises the error, unless it no longer is.
        await self._start(self._database.write_rows(work))
        return now

    async def checkpoint(
        self,
        user_id: str,
        turn_id: str,
        text: str | None,
        reasoning: Reasoning | None = None,
        tool_uses: tuple[ToolUse, ...] | None = None,
    ) -> LeaseStatus:
        """Writes the reply's text so far (None if nothing is new) and renews the lease.

        Args:
            reasoning: its thinking so far, written with the text; None if that is not new.
            tool_uses: its calls of tools so far; likewise.
        """
        write = ReplyWrite(user_id, turn_id, text=text, reasoning=reasoning, tool_uses=tool_uses)
        return await self._writes.write(write)

    async def finish(self, user_id: str, turn_id: str, outcome: TurnOutcome) -> bool:
        """Writes the reply's end. False if the turn is no longer this process's: deleted, or taken over."""
        return await self._writes.write(ReplyWrite(user_id, turn_id, outcome=outcome)) is not LeaseStatus.LOST

    async def request_stop(self, user_id: str, turn_id: str) -> None:
        """Asks the process that writes the reply to stop it. Does nothing if it has ended or is another user's."""

        def work(session: Session) -> None:
            updated = session.execute(
                update(Turn)
                .where(Turn.id == turn_id, Turn.status == "running", _is_of(user_id))
                .values(stop_requested_at=func.coalesce(Turn.stop_requested_at, datetime.now(UTC)))
                .returning(Turn.id)
                .execution_options(synchronize_session=False)
            )
            if updated.one_or_none() is not None:
                notify(session, Channel.STOP_REQUESTED, turn_id)

        await self._database.write(work)

    async def find_comparison(self, user_id: str, turn_id: str) -> list[TurnRecord]:
        """The replies that were started with the comparison whose first turn this is, in the order of their columns.

        Empty if there is none, or it is another user's. Once one of them is kept, only the first is found.
        """
        first = await self.find(user_id, turn_id)
        if first is None:
            return []

        def work(session: Session) -> Sequence[str]:
            others = select(Turn.id).where(
                Turn.conversation_id == first.conversation_id, Turn.comparison_id == turn_id, Turn.id != turn_id
            )
            return session.scalars(others.order_by(Turn.comparison_column)).all()

        return [first, *[await self.get(user_id, each) for each in await self._database.read(work)]]

    async def find(self, user_id: str, turn_id: str) -> TurnRecord | None:
        """As :meth:`get`, but None if missing. Cheap in that case, which is the usual one."""
        try:
            exists = await self._database.read_rows(lambda connection: _TURN_EXISTS.row(connection, {"id": turn_id}))
            return await self.get(user_id, turn_id) if exists else None
        except NotFound:
            return None

    async def get(self, user_id: str, turn_id: str) -> TurnRecord:
        """Returns a turn with its reply.

        Raises:
            NotFound: the turn is missing or another user's.
        """
        missing = NotFound("There is no such reply. Its conversation may have been deleted.")
        if not is_id(turn_id):
            raise missing

        def work(session: Session) -> TurnRecord:
            row = session.execute(
                select(Turn, Message)
                .join(Message, Message.id == Turn.message_id)
                .join(Conversation, Conversation.id == Turn.conversation_id)
                .where(Turn.id == turn_id, Conversation.user_id == user_id, Conversation.deletion.is_(None))
            ).one_or_none()
            if row is None:
                raise missing
            turn, message = row
            return TurnRecord(
                turn_id=turn.id,
                conversation_id=turn.conversation_id,
                user_message_id=message.parent_id,
                message_id=message.id,
                omitted_messages=turn.omitted_messages or 0,
                context_length=turn.context_length,
                model=turn.model,
                has_system_prompt=ChatSettings.model_validate(turn.params).has_system_prompt,
                text=message.content,
                status=MessageStatus(message.status),
                stats=reply_stats(turn),
                error=turn.error,
                reasoning=message.reasoning or "",
                reasoning_seconds=message.reasoning_seconds,
                tool_uses=message.tool_uses or (),
                sources=message.sources or (),
            )

        return await self._database.read(work)

    async def delete_conversation(self, user_id: str, conversation_id: str) -> None:
        """Deletes the conversation with its messages and turns.

        Raises:
            NotFound: it is missing or another user's.
        """

        def work(session: Session) -> None:
            owned_conversation(session, user_id, conversation_id)
            # Locks in the order in which checkpoints lock: first the turn, then its message.
            running = session.execute(
                select(Turn.id, Turn.owner)
                .where(Turn.conversation_id == conversation_id, Turn.status == "running")
                .with_for_update()
            ).all()
            for turn_id, owner in running:
                notify(session, Channel.CHANGED, turn_id)
                if owner != self._owner:
                    notify(session, Channel.STOP_REQUESTED, turn_id)
            owned_conversation(session, user_id, conversation_id, lock=True)
            session.execute(delete(Conversation).where(Conversation.id == conversation_id))

        await self._database.write(work)

    async def _begin_at_once(
        self,
        user_id: str,
        new: NewTurn,
        conversation: Mapping[str, Any],
        now: datetime,
        read_as_of: datetime | None = None,
        max_running: int | None = None,
    ) -> bool:
        """Whether one statement has begun the turn."""
        turn, messages = turn_values(new, self._owner, now), message_values(new, 0, now)
        begin = begin_statement(
            tuple(conversation),
            tuple(messages[0]),
            tuple(turn),
            creates_conversation=new.title is not None,
            counts_running=max_running is not None,
            checks_change=read_as_of is not None,
        )
        parameters = begin.parameters(
            conversation,
            messages,
            turn,
            user_id=user_id,
            parent_id=new.parent_id,
            lease=self._lease_time,
            max_running=max_running,
            read_as_of=read_as_of,
        )
        return bool(await self._start(self._database.write_statement(begin.statement, parameters)))

    async def _start(self, written: Awaitable[Result]) -> Result:
        """Starts or resumes a turn. Of two concurrent starts, the second violates a unique constraint."""
        try:
            return await written
        except IntegrityError as error:
            of_sqlite = getattr(error.orig, "sqlite_errorname", None)
            if isinstance(error.orig, psycopg.errors.UniqueViolation) or of_sqlite in _NOT_UNIQUE:
                raise Conflict(BUSY) from error
            raise

    def _lease(self, session: Session) -> datetime | ColumnElement[datetime]:
        return lease_until(session, self._lease_seconds)


def _has_changed(message: Message, read: PartialReply | None) -> bool:
    """Whether a reply is no longer as it was read."""
    now = (message.content, message.reasoning or "", message.tool_uses or ())
    return read is None or now != (read.text, read.reasoning.text if read.reasoning else "", read.tool_uses)


def _is_of(user_id: str) -> ColumnElement[bool]:
    """Whether the turn is in one of this user's conversations."""
    return Turn.conversation_id.in_(select(Conversation.id).where(Conversation.user_id == user_id))
