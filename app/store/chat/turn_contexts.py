"""Reads what a turn needs for its prompt: the message and the conversation before it. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, exists, select
from sqlalchemy.orm import Session

from app.domain.chat_settings import ChatSettings
from app.domain.knowledge import Passage
from app.domain.prompting import PathMessage
from app.domain.tool_use import ToolUse, ToolUseStatus
from app.domain.views import MessageStatus, Reasoning, Role
from app.errors import Conflict, InvalidInput, NotFound
from app.store.chat.tree import prompt_path
from app.store.db.database import Database
from app.store.db.models import Conversation, Message, Turn, table_of
from app.store.db.prepared_statements import Prepared
from app.store.db.rows import NO_CONVERSATION, RUNNING, is_id, owned_message

BUSY = "A reply is still being written in this conversation. Wait for it or stop it, then send again."

MOVED_ON = "This conversation has changed elsewhere. Reload it, then send again."


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The conversation before a new message."""

    parent_id: str | None
    path: tuple[PathMessage, ...]  #: from the root to the parent
    settings: ChatSettings
    streaming: bool  #: a reply is running in the conversation
    omitted_messages: int = 0  #: left out of the parent's prompt
    context_length: int | None = None  #: of the model that wrote the parent
    allowed_tools: tuple[str, ...] = ()  #: that the user has allowed for the whole conversation
    #: The conversation's ``updated_at`` when it was so, to be checked by the write that rests on it; None: just read.
    read_as_of: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """A user's message in a conversation, with its context."""

    id: str
    conversation_id: str
    text: str
    context: TurnContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialReply:
    """A reply that was cut short and can be resumed."""

    turn_id: str
    message_id: str
    user_message: UserMessage  #: the message it replies to
    text: str
    token_ids: tuple[int, ...]  #: of the text; empty if unknown
    num_tokens: int
    reasoning: Reasoning | None = None  #: its thinking so far
    tool_uses: tuple[ToolUse, ...] = ()  #: its calls of tools so far
    sources: tuple[Passage, ...] = ()  #: the passages that it was given


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """A reply that has ended, with all that its prompt was made from."""

    message_id: str
    user_message: UserMessage  #: the message it replies to; its context is that of the reply's own prompt
    text: str
    token_ids: tuple[int, ...]  #: of the text; empty if unknown
    model: str | None  #: name of the model that wrote it; None if unknown
    settings: ChatSettings  #: that it was written with; those of the conversation where it is not known
    num_tokens: int = 0  #: that the model has written
    reasoning: Reasoning | None = None
    tool_uses: tuple[ToolUse, ...] = ()
    sources: tuple[Passage, ...] = ()


class TurnContexts:
    """The repository of turns' inputs. Every query takes the user's id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get_context(self, user_id: str, conversation_id: str, parent_id: str | None) -> TurnContext:
        """The context of a message after ``parent_id`` (None: after the tip).

        Raises:
            NotFound: the conversation, or the parent in it, is missing or another user's.
            InvalidInput: the parent is not a reply.
        """

        def work(connection: Connection) -> TurnContext:
            row = _OWNED.row(connection, {"conversation_id": conversation_id, "user_id": user_id})
            if row is None:
                raise NotFound(NO_CONVERSATION)
            last, settings, allowed_tools, streaming = row
            if parent_id is not None:
                of_parent = {"id": parent_id, "conversation_id": conversation_id}
                parent = _PARENT.row(connection, of_parent) if is_id(parent_id) else None
                if parent is None:
                    raise NotFound("There is no such message in this conversation to send another one after.")
                if parent != (Role.ASSISTANT,):
                    raise InvalidInput("A message can only follow a reply, not another message of yours.")
                last = parent_id
            return _context(connection, settings, allowed_tools, last, streaming=bool(streaming))

        if not is_id(conversation_id):
            raise NotFound(NO_CONVERSATION)

        return await self._database.read_rows(work)

    async def get_user_message(self, user_id: str, message_id: str) -> UserMessage:
        """The user's message with this id, or the one that the reply ``message_id`` answers.

        Raises:
            NotFound: the message is missing or another user's.
        """

        def work(session: Session) -> UserMessage:
            message = owned_message(session, user_id, message_id)
            return _user_message(session, message if message.role == Role.USER else _question_of(session, message))

        return await self._database.read(work)

    async def get_partial_reply(self, user_id: str, message_id: str, *, decides: bool = False) -> PartialReply:
        """The reply ``message_id``, if it can be resumed.

        Args:
            decides: the user has decided about its calls of tools, which wait for that.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: it is not a reply, is complete, has no text, or has a message after it.
        """

        def work(session: Session) -> PartialReply:
            message = owned_message(session, user_id, message_id)
            turn = resumable_turn(session, message, decides=decides)
            return PartialReply(
                turn_id=turn.id,
                message_id=message.id,
                user_message=_user_message(session, _question_of(session, message)),
                text=message.content,
                token_ids=message.token_ids or (),
                num_tokens=turn.completion_tokens or 0,
                reasoning=Reasoning(message.reasoning, message.reasoning_seconds or 0.0) if message.reasoning else None,
                tool_uses=message.tool_uses or (),
                sources=message.sources or (),
            )

        return await self._database.read(work)

    async def get_reply(self, user_id: str, message_id: str, *, resumes: bool = False) -> StoredReply:
        """The reply ``message_id``, once it has ended.

        Args:
            resumes: only one that was cut short, so that it can go on.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: it is no reply to a message; also if it can go on no further.
            Conflict: it is still being written.
        """

        def work(session: Session) -> StoredReply:
            message = owned_message(session, user_id, message_id)
            if message.role != Role.ASSISTANT or message.parent_id is None:
                raise InvalidInput("Only a reply to a message can be looked into.")
            if message.status == MessageStatus.STREAMING:
                raise Conflict(BUSY)
            user_message = _user_message(session, _question_of(session, message))
            turn = session.scalars(select(Turn).where(Turn.message_id == message.id)).one_or_none()
            if resumes:
                if turn is None:
                    raise InvalidInput("It is not known how this reply ended. Ask for another one.")
                _check_end(message, turn, decides=False)
            context = user_message.context
            if turn is not None:
                omitted, length = turn.omitted_messages or 0, turn.context_length
                context = replace(context, omitted_messages=omitted, context_length=length)
            return StoredReply(
                message_id=message.id,
                user_message=replace(user_message, context=context),
                text=message.content,
                token_ids=message.token_ids or (),
                model=turn.model if turn is not None else None,
                settings=ChatSettings.model_validate(turn.params)
                if turn is not None and turn.params
                else context.settings,
                num_tokens=(turn.completion_tokens or 0) if turn is not None else 0,
                reasoning=Reasoning(message.reasoning, message.reasoning_seconds or 0.0) if message.reasoning else None,
                tool_uses=message.tool_uses or (),
                sources=message.sources or (),
            )

        return await self._database.read(work)


def is_running(connection: Connection, conversation_id: str) -> bool:
    """Whether a reply is being written in the conversation."""
    return _IS_RUNNING.row(connection, {"conversation_id": conversation_id}) is not None


# Queries of every message sent.
_CONVERSATION, _MESSAGE, _TURN = table_of(Conversation), table_of(Message), table_of(Turn)
_OWNED = Prepared(
    select(
        _CONVERSATION.c.tip_message_id,
        _CONVERSATION.c.settings,
        _CONVERSATION.c.allowed_tools,
        select(_TURN.c.id).where(_TURN.c.conversation_id == _CONVERSATION.c.id, _TURN.c.status == RUNNING).exists(),
    ).where(
        _CONVERSATION.c.id == bindparam("conversation_id"),
        _CONVERSATION.c.user_id == bindparam("user_id"),
        _CONVERSATION.c.deletion.is_(None),
    )
)
_PARENT = Prepared(
    select(_MESSAGE.c.role).where(
        _MESSAGE.c.id == bindparam("id"),
        _MESSAGE.c.conversation_id == bindparam("conversation_id"),
        _MESSAGE.c.deletion.is_(None),
    )
)
_IS_RUNNING = Prepared(
    select(_TURN.c.id).where(_TURN.c.conversation_id == bindparam("conversation_id"), _TURN.c.status == RUNNING)
)


def _context(
    connection: Connection,
    settings: dict[str, Any],
    allowed_tools: Sequence[str] | None,
    last: str | None,
    *,
    streaming: bool,
) -> TurnContext:
    """The context of a message after ``last``."""
    rows = prompt_path(connection, last)
    latest = rows[-1] if rows else None
    return TurnContext(
        parent_id=last,
        path=tuple(
            PathMessage(
                Role(row.role),
                row.content,
                row.token_ids or (),
                row.reasoning or "",
                row.tool_uses or (),
                row.sources or (),
            )
            for row in rows
        ),
        settings=ChatSettings.model_validate(settings),
        streaming=streaming,
        omitted_messages=(latest.omitted_messages or 0) if latest else 0,
        context_length=latest.context_length if latest else None,
        allowed_tools=tuple(allowed_tools or ()),
    )


def _user_message(session: Session, message: Message) -> UserMessage:
    conversation = session.get_one(Conversation, message.conversation_id)
    connection = session.connection()
    return UserMessage(
        id=message.id,
        conversation_id=conversation.id,
        text=message.content,
        context=_context(
            connection,
            conversation.settings,
            conversation.allowed_tools,
            message.parent_id,
            streaming=is_running(connection, conversation.id),
        ),
    )


def _question_of(session: Session, reply: Message) -> Message:
    return session.get_one(Message, reply.parent_id)


def resumable_turn(session: Session, message: Message, *, decides: bool = False) -> Turn:
    """The turn of a reply that can be resumed.

    Args:
        decides: it is resumed with the user's decision about its calls of tools.

    Raises:
        InvalidInput: it cannot be resumed; the text says why.
        Conflict: it is still being written.
    """
    turn = session.scalars(select(Turn).where(Turn.message_id == message.id)).one_or_none()
    if message.role != Role.ASSISTANT or turn is None:
        raise InvalidInput("Only a reply can be continued.")
    if message.status == MessageStatus.STREAMING:
        raise Conflict(BUSY)
    _check_end(message, turn, decides=decides)
    if session.scalar(select(exists().where(Message.parent_id == message.id, Message.deletion.is_(None)))):
        raise InvalidInput("A message follows this reply already. Only the last reply can be continued.")
    return turn


def _check_end(message: Message, turn: Turn, *, decides: bool) -> None:
    """Checks that the way in which the reply ended lets it go on."""
    waits = any(use.status is ToolUseStatus.WAITING for use in message.tool_uses or ())
    if decides and not waits:
        raise InvalidInput("This reply does not wait for a decision about a tool.")
    if decides:
        return
    if waits:
        raise InvalidInput("This reply waits for your decision about its tools. Allow or deny them.")
    if not message.content.strip() and not message.reasoning and not message.tool_uses:
        raise InvalidInput("This reply has no text to continue from. Ask for another one.")
    # An imported reply may have no finish reason.
    if message.status == MessageStatus.COMPLETE and turn.finish_reason == "stop_string":
        raise InvalidInput("A stop string ended this reply; there is nothing to continue.")
    if message.status == MessageStatus.COMPLETE and turn.finish_reason in (None, "stop"):
        raise InvalidInput("This reply has ended by itself; there is nothing to continue.")
