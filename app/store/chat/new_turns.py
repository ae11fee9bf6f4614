"""A turn that begins: what it is made of, and the rows that begin it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, Interval, bindparam, func, select, update

from app.domain.chat_settings import ChatSettings
from app.domain.knowledge import Passage
from app.domain.tool_use import ToolUse
from app.domain.views import MessageStatus, Role
from app.errors import Conflict, NotFound
from app.store.chat.conversations import settings_row
from app.store.chat.turn_contexts import BUSY, MOVED_ON, PartialReply, is_running
from app.store.db.database import is_postgres
from app.store.db.models import Conversation, Message, Turn, table_of
from app.store.db.prepared_statements import Prepared, insert_into, insert_rows, row_parameters
from app.store.db.rows import NO_CONVERSATION, RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """A message and its reply, before the reply has any text."""

    turn_id: str
    conversation_id: str
    user_message_id: str
    message_id: str
    title: str | None  #: of the conversation to create; None if it exists
    parent_id: str | None  #: the message before this one
    parent_is_tip: bool  #: raise Conflict if the conversation has moved on meanwhile
    text: str | None  #: None if the message exists and gets another reply
    partial_reply: PartialReply | None = None  #: the reply to resume, as it was read
    tool_uses: tuple[ToolUse, ...] = ()  #: its calls of tools, with the user's decision
    decides: bool = False  #: the user has decided about them
    newly_allowed: tuple[str, ...] = ()  #: tools that are allowed for the whole conversation from now on
    sources: tuple[Passage, ...] = ()  #: the passages that the reply is given; one that is resumed keeps its own
    beginning: str = ""  #: the text with which a new reply begins
    edited: bool = False  #: the user has written that
    settings: ChatSettings
    save_settings: bool
    conversation_settings: ChatSettings | None = None  #: saved in place of ``settings``, which are this reply's alone
    seed: int | None = None  #: that the reply is written with; None where it is unknown
    comparison_id: str | None = None  #: of the first turn of the replies that are compared
    comparison_column: int = 0
    model: str
    omitted_messages: int = 0
    context_length: int | None = None


# Statements of every message sent.
_CONVERSATION = table_of(Conversation)
_TURN = table_of(Turn)
_OWNED = select(_CONVERSATION.c.tip_message_id).where(
    _CONVERSATION.c.id == bindparam("conversation_id"),
    _CONVERSATION.c.user_id == bindparam("user_id"),
    _CONVERSATION.c.deletion.is_(None),
)
_LOCKED = Prepared(_OWNED.with_for_update(key_share=True))  # inserting a row that refers to it does not wait
_NEW_CONVERSATION = insert_into(
    _CONVERSATION, "id user_id title created_at tip_message_id updated_at archived unread settings"
)
_OF_TURN = (
    "id conversation_id message_id status model params seed owner created_at heartbeat_at checkpoint_offset "
    "omitted_messages context_length edited comparison_id comparison_column"
)
_NEW_TURN = insert_into(_TURN, f"{_OF_TURN} lease_until")
_NEW_TURN_POSTGRES = insert_into(_TURN, _OF_TURN, lease_until=func.now() + bindparam("lease", type_=Interval))
_MESSAGE = table_of(Message)
_OF_MESSAGE = "id conversation_id parent_id role status content sources position created_at"
_PARENT = Prepared(select(_MESSAGE.c.position).where(_MESSAGE.c.id == bindparam("id"), _MESSAGE.c.deletion.is_(None)))


def conversation_values(user_id: str, new: NewTurn, now: datetime) -> dict[str, Any]:
    """The column values of the conversation of a new turn, all of them if the turn creates it."""
    values: dict[str, Any] = {"tip_message_id": new.message_id, "updated_at": now}
    values |= {"archived": False, "unread": False}  # a new message unarchives it and marks it as read
    if new.save_settings:
        values["settings"] = settings_row(new.conversation_settings or new.settings)
    if new.title is None:
        return values
    born = {"id": new.conversation_id, "user_id": user_id, "title": new.title, "created_at": now}
    return {"settings": {}, **born, **values}


def turn_values(new: NewTurn, owner: str, now: datetime) -> dict[str, Any]:
    """The row of a new turn, without its lease."""
    return {
        "id": new.turn_id,
        "conversation_id": new.conversation_id,
        "message_id": new.message_id,
        "status": "running",
        "model": new.model,
        "params": settings_row(new.settings),
        "seed": new.seed,
        "owner": owner,
        "created_at": now,
        "heartbeat_at": now,
        "checkpoint_offset": 0,
        "omitted_messages": new.omitted_messages,
        "context_length": new.context_length,
        "edited": new.edited,
        "comparison_id": new.comparison_id,
        "comparison_column": new.comparison_column,
    }


def message_values(new: NewTurn, position: int, now: datetime) -> list[dict[str, Any]]:
    """The rows of a new turn: the user's message, unless it exists, and its reply.

    Args:
        position: of the first of them.
    """
    is_there = new.text is None
    both: dict[str, Any] = {"conversation_id": new.conversation_id, "created_at": now}
    user_message = {
        "id": new.user_message_id,
        "parent_id": new.parent_id,
        "role": Role.USER,
        "status": MessageStatus.COMPLETE,
        "content": new.text,
        "sources": None,
        "position": position,
    }
    reply = {
        "id": new.message_id,
        "parent_id": new.user_message_id,
        "role": Role.ASSISTANT,
        "status": MessageStatus.STREAMING,
        "content": new.beginning,
        "sources": new.sources,
        "position": position if is_there else position + 1,
    }
    return [both | reply] if is_there else [both | user_message, both | reply]


def insert_conversation(connection: Connection, values: Mapping[str, Any]) -> None:
    """Writes the conversation that a new turn creates."""
    _NEW_CONVERSATION.run(connection, values)


def insert_turn(connection: Connection, new: NewTurn, owner: str, now: datetime, lease_time: timedelta) -> None:
    """Writes a running turn with its messages.

    Raises:
        NotFound: the message before it was deleted.
    """
    messages = message_values(new, _position(connection, new), now)
    insert_rows(_MESSAGE, _OF_MESSAGE, len(messages)).run(connection, row_parameters(messages))
    lease = {"lease": lease_time, "lease_until": now + lease_time}
    statement = _NEW_TURN_POSTGRES if is_postgres(connection) else _NEW_TURN
    statement.run(connection, turn_values(new, owner, now) | lease)


def lock_and_update(connection: Connection, user_id: str, new: NewTurn, values: Mapping[str, Any]) -> None:
    """Locks the conversation of a new message and updates it, if the message may be added now.

    Raises:
        NotFound, Conflict: as :meth:`TurnRecords.begin`.
    """
    tip = _LOCKED.row(connection, {"conversation_id": new.conversation_id, "user_id": user_id})
    if tip is None:
        raise NotFound(NO_CONVERSATION)
    if new.parent_is_tip and tip != (new.parent_id,):
        raise Conflict(BUSY if is_running(connection, new.conversation_id) else MOVED_ON)
    # A statement after the lock: it sees what the last holder of the lock has committed.
    if not _update_unless_running(tuple(values)).row(connection, {"key": new.conversation_id, **values}):
        raise Conflict(BUSY)


@cache
def _update_unless_running(columns: Sequence[str]) -> Prepared:
    """The update of a conversation that changes nothing, and returns no row, while a reply is being written in it."""
    running = select(_TURN.c.id).where(_TURN.c.conversation_id == _CONVERSATION.c.id, _TURN.c.status == RUNNING)
    changed = update(_CONVERSATION).where(_CONVERSATION.c.id == bindparam("key"), ~running.exists())
    return Prepared(changed.values({name: bindparam(name) for name in columns}).returning(_CONVERSATION.c.id))


def _position(connection: Connection, new: NewTurn) -> int:
    """The position of the first message that is written for a new turn.

    Raises:
        NotFound: the message before it was deleted.
    """
    parent_id = new.user_message_id if new.text is None else new.parent_id
    if parent_id is None:
        return 0
    parent = _PARENT.row(connection, {"id": parent_id})
    if parent is None:
        raise NotFound("The message that this one follows was deleted meanwhile. Reload the conversation.")
    return int(parent[0]) + 1
