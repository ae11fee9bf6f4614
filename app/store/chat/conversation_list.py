"""Lists conversations page by page, with keyset pagination and without the messages' texts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, bindparam, exists, literal, select, tuple_
from sqlalchemy.orm import Session

from app.domain.views import ConversationSummary, Page
from app.errors import InvalidInput
from app.store.chat.folders import folder_names
from app.store.chat.search import Query
from app.store.db.models import Conversation, ConversationTag, Message, Turn, UtcDateTime
from app.store.db.prepared_statements import Prepared
from app.store.db.rows import is_id

_TAGS = Prepared(
    select(ConversationTag.tag)
    .where(ConversationTag.conversation_id == bindparam("conversation_id"))
    .order_by(ConversationTag.tag)
)
NO_FOLDER_ID = "none"
"""In place of a folder's id: the conversations that are in no folder."""


@dataclass(frozen=True, slots=True)
class PageCursor:
    """The position where a page of conversations ended."""

    pinned: bool
    updated_at: datetime
    conversation_id: str

    def encode(self) -> str:
        place = f"{int(self.pinned)}|{self.updated_at.isoformat()}|{self.conversation_id}"
        return base64.urlsafe_b64encode(place.encode()).decode()

    @classmethod
    def decode(cls, cursor: str) -> PageCursor:
        """Decodes a page's ``next_cursor``.

        Raises:
            InvalidInput: it is not a valid cursor.
        """
        nonsense = InvalidInput("This cursor is not valid. Send the next_cursor of a page, or leave it out.")
        try:
            pinned, moment, conversation_id = base64.urlsafe_b64decode(cursor.encode()).decode().split("|")
            updated_at = datetime.fromisoformat(moment)
        except (binascii.Error, ValueError) as error:
            raise nonsense from error
        if pinned not in ("0", "1") or updated_at.tzinfo is None or not is_id(conversation_id):
            raise nonsense
        return cls(pinned == "1", updated_at, conversation_id)


@dataclass(frozen=True, slots=True)
class ListFilter:
    """Which conversations are listed."""

    tag: str | None = None
    archived: bool = False  #: does not apply to a search
    folder: str | None = None  #: a folder's id, or :data:`NO_FOLDER_ID`; None: in any folder or in none


def list_page(
    session: Session,
    user_id: str,
    limit: int,
    after: PageCursor | None,
    search: Query | None,
    filters: ListFilter,
) -> Page[ConversationSummary]:
    """One page; see :meth:`app.store.chat.conversations.Conversations.list`."""
    running = exists().where(Turn.conversation_id == Conversation.id, Turn.status == "running")
    # Search results are ordered by time only.
    pinned: ColumnElement[bool] = Conversation.pinned.expression if search is None else literal(False)
    hit: ColumnElement[str | None] = literal(None)
    statement = select(Conversation, running.label("streaming"), pinned.label("is_pinned")).where(
        Conversation.user_id == user_id, Conversation.deletion.is_(None)
    )
    if search is None:
        statement = statement.where(Conversation.archived.is_(filters.archived))
    else:
        hits = search.hits(session)
        hit = hits.c.message_id
        statement = statement.join(hits, hits.c.conversation_id == Conversation.id)
    if (tag := filters.tag) is not None:
        statement = statement.where(
            exists().where(ConversationTag.conversation_id == Conversation.id, ConversationTag.tag == tag)
        )
    if (folder := filters.folder) is not None:
        in_folder = Conversation.folder_id.is_(None) if folder == NO_FOLDER_ID else Conversation.folder_id == folder
        statement = statement.where(in_folder)
    if after is not None:
        statement = statement.where(
            tuple_(pinned, Conversation.updated_at, Conversation.id)
            < tuple_(literal(after.pinned), literal(after.updated_at, UtcDateTime()), literal(after.conversation_id))
        )
    if search is None:
        statement = statement.order_by(Conversation.pinned.desc())
    rows = session.execute(
        statement.add_columns(hit.label("hit"))
        .order_by(Conversation.updated_at.desc(), Conversation.id.desc())
        .limit(limit + 1)
    ).all()
    shown = rows[:limit]
    tags = tags_of(session, [row[0].id for row in shown])
    folders = folder_names(session, [row[0].folder_id for row in shown])
    contents = _contents(session, [row.hit for row in shown if row.hit is not None])
    return Page(
        items=tuple(
            ConversationSummary(
                id=conversation.id,
                title=conversation.title,
                created_at=conversation.created_at,
                updated_at=conversation.updated_at,
                streaming=streaming,
                pinned=conversation.pinned,
                archived=conversation.archived,
                unread=conversation.unread,
                tags=tags.get(conversation.id, ()),
                folder_id=conversation.folder_id,
                folder=folders.get(conversation.folder_id or ""),
                message_id=message_id,
                snippet=search.snippet(contents[message_id]) if search and message_id in contents else (),
            )
            for conversation, streaming, _is_pinned, message_id in shown
        ),
        next_cursor=PageCursor(shown[-1].is_pinned, shown[-1][0].updated_at, shown[-1][0].id).encode()
        if len(rows) > limit
        else None,
    )


def tags_of(session: Session, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Tags by conversation id; conversations without tags are missing."""
    if len(conversation_ids) == 1:
        tags = tuple(tag for (tag,) in _TAGS.rows_in(session, {"conversation_id": conversation_ids[0]}))
        return {conversation_ids[0]: tags} if tags else {}
    rows = session.execute(
        select(ConversationTag.conversation_id, ConversationTag.tag)
        .where(ConversationTag.conversation_id.in_(conversation_ids))
        .order_by(ConversationTag.tag)
    )
    found: dict[str, tuple[str, ...]] = {}
    for conversation_id, tag in rows:
        found[conversation_id] = (*found.get(conversation_id, ()), tag)
    return found


def tags_in(connection: Connection, conversation_id: str) -> tuple[str, ...]:
    """Tags of one conversation."""
    return tuple(tag for (tag,) in _TAGS.rows(connection, {"conversation_id": conversation_id}))


def _contents(session: Session, message_ids: Sequence[str]) -> dict[str, str]:
    rows = session.execute(select(Message.id, Message.content).where(Message.id.in_(message_ids)))
    return dict(rows.tuples().all())
