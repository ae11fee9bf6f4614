"""Storage use per user. The database adds up sizes that it maintains itself, without reading texts."""

from __future__ import annotations

from sqlalchemy import distinct, func, select
from sqlalchemy.orm import Session

from app.domain.storage import CONVERSATION_BYTES, MESSAGE_BYTES, RESPONSE_BYTES, StorageUse
from app.store.db.database import Database
from app.store.db.desk_models import ReplyDraft
from app.store.db.models import Conversation, ConversationTag, Message, Turn
from app.store.db.response_models import StoredResponse


class StorageUsageRecords:
    """The repository of storage use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, user_id: str) -> StorageUse:
        """What the user has stored now."""
        return await self._database.read(lambda session: storage_use(session, user_id))

    async def of_conversation(self, user_id: str, conversation_id: str) -> int:
        """Size of one conversation in bytes; 0 if it is missing or another user's."""
        return await self._database.read(lambda session: conversation_bytes(session, user_id, conversation_id))


def storage_use(session: Session, user_id: str) -> StorageUse:
    """What the user has stored, including this transaction's own writes."""
    # What is deleted makes room at once, also while the deletion can be undone.
    is_own = (Conversation.user_id == user_id) & Conversation.deletion.is_(None)
    conversations, settings = session.execute(
        select(func.count(), func.coalesce(func.sum(Conversation.stored_bytes), 0)).where(is_own)
    ).one()
    messages, texts = session.execute(
        select(func.count(), func.coalesce(func.sum(Message.stored_bytes), 0))
        .join(Conversation, Conversation.id == Message.conversation_id)
        .where(is_own)
    ).one()
    params = session.scalar(
        select(func.coalesce(func.sum(Turn.stored_bytes), 0))
        .join(Conversation, Conversation.id == Turn.conversation_id)
        .where(is_own)
    )
    drafts = session.scalar(
        select(func.coalesce(func.sum(ReplyDraft.stored_bytes), 0))
        .join(Conversation, Conversation.id == ReplyDraft.conversation_id)
        .where(is_own)
    )
    tags = session.scalar(
        select(func.count(distinct(ConversationTag.tag)))
        .join(Conversation, Conversation.id == ConversationTag.conversation_id)
        .where(is_own)
    )
    responses, bodies = session.execute(
        select(func.count(), func.coalesce(func.sum(StoredResponse.stored_bytes), 0)).where(
            StoredResponse.user_id == user_id
        )
    ).one()
    rows = conversations * CONVERSATION_BYTES + messages * MESSAGE_BYTES + responses * RESPONSE_BYTES
    stored = rows + int(settings) + int(texts) + int(params or 0) + int(drafts or 0) + int(bodies)
    return StorageUse(bytes=stored, conversations=conversations, tags=tags or 0, responses=responses)


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
