"""Conversations as people see them: listed, searched, opened, renamed. Every query asks for the user's id."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, exists, func, literal, or_, select, tuple_, update
from sqlalchemy.orm import Session

from app.domain.chat_settings import ChatSettings
from app.domain.ids import new_id
from app.domain.text import MAX_TITLE_CHARS, branch_title, clean_text, one_line
from app.domain.views import ConversationSummary, ConversationView, MessageStatus, MessageView, Page
from app.errors import Conflict, InvalidInput, NotFound
from app.store.database import Database
from app.store.models import Conversation, Message, Turn, UtcDateTime
from app.store.rows import is_id, message_view, owned_conversation, owned_message
from app.store.search import contains, snippet
from app.store.tree import copy_path, latest_below, path_to, siblings_of

MAX_PAGE = 500


class Conversations:
    """The repository of conversations. Deleting one is :meth:`app.turns.service.Turns.delete_conversation`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self, user_id: str, *, limit: int = 50, cursor: str | None = None, query: str | None = None
    ) -> Page[ConversationSummary]:
        """The user's conversations, latest activity first.

        Args:
            cursor: the last page's ``next_cursor``.
            query: only those with this in the title or a message, whatever the case; ``snippet`` shows
                the message that matched.

        Raises:
            InvalidInput: the limit or the cursor makes no sense.
        """
        _check_limit(limit)
        after = _decode_cursor(cursor) if cursor else None
        wanted = clean_text(query).strip() if query else ""
        return await self._database.read(lambda session: _list(session, user_id, limit, after, wanted))

    async def get(
        self, user_id: str, conversation_id: str, *, limit: int = 100, before: str | None = None
    ) -> ConversationView:
        """The conversation with its last ``limit`` messages, or the last ones above the message ``before``.

        Raises:
            NotFound: the conversation, or the message in it, is missing or another user's.
            InvalidInput: the limit makes no sense.
        """
        _check_limit(limit)

        def work(session: Session) -> ConversationView:
            conversation = owned_conversation(session, user_id, conversation_id)
            last = conversation.tip_message_id
            if before is not None:
                message = owned_message(session, user_id, before)
                if message.conversation_id != conversation.id:
                    raise NotFound("There is no such message in this conversation.")
                last = message.parent_id
            rows = path_to(session, last, limit)
            siblings = siblings_of(session, [message for message, _turn in rows])
            messages = tuple(message_view(message, turn, siblings[message.id]) for message, turn in rows)
            return ConversationView(
                id=conversation.id,
                title=conversation.title,
                settings=ChatSettings.model_validate(conversation.settings),
                messages=messages,
                has_earlier=bool(messages) and messages[0].parent_id is not None,
                active_turn_id=session.scalar(
                    select(Turn.id).where(Turn.conversation_id == conversation.id, Turn.status == "running")
                ),
            )

        return await self._database.read(work)

    async def get_message(self, user_id: str, message_id: str) -> MessageView:
        """Raises:
        NotFound: the message is missing or another user's.
        """

        def work(session: Session) -> MessageView:
            message = owned_message(session, user_id, message_id)
            turn = session.scalars(select(Turn).where(Turn.message_id == message.id)).one_or_none()
            return message_view(message, turn, siblings_of(session, [message])[message.id])

        return await self._database.read(work)

    async def show(self, user_id: str, message_id: str) -> None:
        """Make the branch that ``message_id`` is on the one that is shown, as far as its latest messages go.

        Raises:
            NotFound: the message is missing or another user's.
        """

        def work(session: Session) -> None:
            message = owned_message(session, user_id, message_id)
            conversation = owned_conversation(session, user_id, message.conversation_id, lock=True)
            conversation.tip_message_id = latest_below(session, message.id)

        await self._database.write(work)

    async def branch(self, user_id: str, message_id: str) -> str:
        """Copy a conversation up to a message into a new one; returns the new one's id.

        Raises:
            NotFound: the message is missing or another user's.
            Conflict: the message is still being written.
        """
        now = datetime.now(UTC)

        def work(session: Session) -> str:
            last = owned_message(session, user_id, message_id)
            if last.status == MessageStatus.STREAMING:
                raise Conflict("This reply is still being written. Wait for it or stop it, then branch.")
            origin = owned_conversation(session, user_id, last.conversation_id)
            copied = Conversation(
                id=new_id(),
                user_id=user_id,
                title=branch_title(origin.title),
                settings=origin.settings,
                created_at=now,
                updated_at=now,
            )
            session.add(copied)
            session.flush()
            copied.tip_message_id = copy_path(session, path_to(session, last.id, token_ids=True), copied.id)
            return copied.id

        return await self._database.write(work)

    async def rename(self, user_id: str, conversation_id: str, title: str) -> None:
        """Raises:
        InvalidInput: the title is empty or longer than 200 characters.
        NotFound: the conversation is missing or another user's.
        """
        title = one_line(clean_text(title))
        if not title:
            raise InvalidInput("A title needs at least one character.")
        if len(title) > MAX_TITLE_CHARS:
            raise InvalidInput(f"This title is {len(title)} characters long; at most {MAX_TITLE_CHARS} are kept.")
        await self._change(user_id, conversation_id, title=title)

    async def save_settings(self, user_id: str, conversation_id: str, settings: ChatSettings) -> None:
        """Raises:
        InvalidInput: a value is out of range.
        NotFound: the conversation is missing or another user's.
        """
        settings.sampling_params()
        await self._change(user_id, conversation_id, settings=settings_row(settings))

    async def settings_of(self, user_id: str, conversation_id: str) -> ChatSettings:
        """Raises:
        NotFound: the conversation is missing or another user's.
        """
        return await self._database.read(
            lambda session: ChatSettings.model_validate(owned_conversation(session, user_id, conversation_id).settings)
        )

    async def _change(self, user_id: str, conversation_id: str, **values: object) -> None:
        def work(session: Session) -> None:
            owned_conversation(session, user_id, conversation_id, lock=True)
            session.execute(update(Conversation).where(Conversation.id == conversation_id).values(**values))

        await self._database.write(work)


def settings_row(settings: ChatSettings) -> dict[str, object]:
    """Settings as they are stored: defaults left out."""
    return settings.model_dump(mode="json", exclude_defaults=True)


def _list(
    session: Session, user_id: str, limit: int, after: tuple[datetime, str] | None, query: str
) -> Page[ConversationSummary]:
    running = exists().where(Turn.conversation_id == Conversation.id, Turn.status == "running")
    statement = select(
        Conversation.id, Conversation.title, Conversation.created_at, Conversation.updated_at, running
    ).where(Conversation.user_id == user_id)
    if query:
        statement = statement.where(
            or_(
                contains(Conversation.title, query),
                exists().where(Message.conversation_id == Conversation.id, contains(Message.content, query)),
            )
        )
    if after is not None:
        statement = statement.where(
            tuple_(Conversation.updated_at, Conversation.id)
            < tuple_(literal(after[0], UtcDateTime()), literal(after[1]))
        )
    rows = session.execute(
        statement.order_by(Conversation.updated_at.desc(), Conversation.id.desc()).limit(limit + 1)
    ).all()
    shown = rows[:limit]
    snippets = _snippets(session, [row.id for row in shown], query) if query else {}
    return Page(
        items=tuple(
            ConversationSummary(id, title, created_at, updated_at, streaming, snippets.get(id))
            for id, title, created_at, updated_at, streaming in shown
        ),
        next_cursor=_encode_cursor(shown[-1].updated_at, shown[-1].id) if len(rows) > limit else None,
    )


def _snippets(session: Session, conversation_ids: Sequence[str], query: str) -> dict[str, str]:
    """Of each conversation, what surrounds the hit in the first message that has one."""
    hit: ColumnElement[bool] = contains(Message.content, query)
    first = (
        select(func.min(Message.id))
        .where(Message.conversation_id.in_(conversation_ids), hit)
        .group_by(Message.conversation_id)
    )
    rows = session.execute(select(Message.conversation_id, Message.content).where(Message.id.in_(first)))
    return {conversation_id: snippet(content, query) for conversation_id, content in rows}


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit is {limit}; it must be between 1 and {MAX_PAGE}.")


def _encode_cursor(updated_at: datetime, conversation_id: str) -> str:
    return base64.urlsafe_b64encode(f"{updated_at.isoformat()}|{conversation_id}".encode()).decode()


def _decode_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        moment, _, conversation_id = base64.urlsafe_b64decode(cursor.encode()).decode().partition("|")
        parsed = datetime.fromisoformat(moment)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput("This cursor is not one that a page of conversations gave; leave it out.") from error
    if parsed.tzinfo is None or not is_id(conversation_id):
        raise InvalidInput("This cursor is not one that a page of conversations gave; leave it out.")
    return parsed, conversation_id
