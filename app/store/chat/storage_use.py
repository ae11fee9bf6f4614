"""Storage use per user. The database adds up sizes that it maintains itself, without reading texts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Subquery, bindparam, distinct, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.storage import CONVERSATION_BYTES, MESSAGE_BYTES, RESPONSE_BYTES, StorageUse
from app.store.db.database import Database
from app.store.db.desk_models import ReplyDraft
from app.store.db.models import Conversation, ConversationTag, Message, Turn
from app.store.db.prepared_statements import Prepared
from app.store.db.response_models import StoredResponse

_USER: BindParameter[str] = bindparam("user_id")
# What is deleted makes room at once, also while the deletion can be undone.
_IS_OWN = (Conversation.user_id == _USER) & Conversation.deletion.is_(None)


def _total(stored_bytes: InstrumentedAttribute[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(stored_bytes), 0)


def _in_conversations(of: type[Message | Turn | ReplyDraft | ConversationTag], *totals: ColumnElement[int]) -> Subquery:
    """Totals of what belongs to the user's conversations: one row."""
    rows = select(*totals).select_from(of).join(Conversation, Conversation.id == of.conversation_id)
    return rows.where(_IS_OWN).subquery()


# One statement: with a quota, each user who writes runs it twice a minute.
_USE = Prepared(
    select(
        select(func.count(), _total(Conversation.stored_bytes)).where(_IS_OWN).subquery(),
        _in_conversations(Message, func.count(), _total(Message.stored_bytes)),
        _in_conversations(Turn, _total(Turn.stored_bytes)),
        _in_conversations(ReplyDraft, _total(ReplyDraft.stored_bytes)),
        _in_conversations(ConversationTag, func.count(distinct(ConversationTag.tag))),
        select(func.count(), _total(StoredResponse.stored_bytes)).where(StoredResponse.user_id == _USER).subquery(),
    )
)


class StorageUsageRecords:
    """The repository of storage use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, user_id: str) -> StorageUse:
        """What the user has stored now."""
        return _use_of(await self._database.read_rows(lambda connection: _USE.rows(connection, {"user_id": user_id})))

    async def of_conversation(self, user_id: str, conversation_id: str) -> int:
        """Size of one conversation in bytes; 0 if it is missing or another user's."""
        return await self._database.read(lambda session: conversation_bytes(session, user_id, conversation_id))


def storage_use(session: Session, user_id: str) -> StorageUse:
    """What the user has stored, including this transaction's own writes."""
    return _use_of(_USE.rows_in(session, {"user_id": user_id}))


def _use_of(rows: list[tuple[Any, ...]]) -> StorageUse:
    (used,) = rows
    conversations, settings, messages, texts, params, drafts, tags, responses, bodies = map(int, used)
    sizes = conversations * CONVERSATION_BYTES + messages * MESSAGE_BYTES + responses * RESPONSE_BYTES
    stored = sizes + settings + texts + params + drafts + bodies
    return StorageUse(bytes=stored, conversations=conversations, tags=tags, responses=responses)


def conversation_bytes(session: Session, user_id: str, conversation_id: str) -> int:
    """Size of one of the user's conversations in bytes; 0 if there is none."""
    found = session.scalar(
        select(Conversation.stored_bytes).where(Conversation.id == conversation_id, Conversation.user_id == user_id)
    )
    if found is None:
        return 0
    messages, texts = session.execute(
        select(func.count(), func.coalesce(func.sum(Message.stored_bytes), 0)).where(
            Message.conversation_id == conversation_id
        )
    ).one()
    params = session.scalar(
        select(func.coalesce(func.sum(Turn.stored_bytes), 0)).where(Turn.conversation_id == conversation_id)
    )
    drafts = session.scalar(
        select(func.coalesce(func.sum(ReplyDraft.stored_bytes), 0)).where(ReplyDraft.conversation_id == conversation_id)
    )
    rows: int = CONVERSATION_BYTES + messages * MESSAGE_BYTES
    return rows + found + int(texts) + int(params or 0) + int(drafts or 0)
