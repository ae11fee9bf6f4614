"""Conversations and their turns over one database: the persistent one, or the in-memory one of temporary chats."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from alembic import command
from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from app.domain.ids import new_id
from app.domain.storage import TEMPORARY_BYTES, StorageLimits
from app.settings import AppSettings
from app.store.chat.conversations import ClosedDocuments, Conversations
from app.store.chat.deletions import ConversationDeletion, Deletions
from app.store.chat.feedback import FeedbackRecords
from app.store.chat.reply_drafts import DraftRecords
from app.store.chat.storage_use import StorageUsageRecords
from app.store.chat.turn_contexts import TurnContexts
from app.store.chat.turn_records import TurnRecords
from app.store.db.database import IN_MEMORY, Database
from app.store.db.models import Account, Conversation, Message, Turn
from app.store.db.notifications import Notifications
from app.store.maintenance.migrate import alembic_config
from app.store.maintenance.retention import Retention
from app.templates.catalog import Templates
from app.turns.admission import Admission, UnlimitedAdmission
from app.turns.drafts import Drafts
from app.turns.engine_requests import EngineRequests
from app.turns.service import Turns
from app.turns.sources import Sources
from app.turns.storage_quota import StorageQuota
from app.turns.tool_offers import ToolOffers
from engine import ChatEngine

#: Temporary chats are deleted this long after their last message.
TEMPORARY_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats:
    """The services for the conversations of one database."""

    conversations: Conversations
    turns: Turns
    deletions: Deletions
    feedback: FeedbackRecords
    drafts: Drafts

    async def delete_conversations(self, user_id: str, conversation_ids: Sequence[str]) -> ConversationDeletion:
        """Deletes conversations, which can be undone for a while, and stops the replies in them.

        Raises:
            NotFound: none of them is there, or is the user's.
        """
        deletion = await self.deletions.delete_conversations(user_id, conversation_ids)
        await self.turns.leave_conversations(user_id, frozenset(deletion.conversation_ids))
        return deletion


class TemporaryChats:
    """Chats kept only in this process's memory. They end with the process, or a day after their last message.

    The documents that they cite are in the persistent database, which ``closed_documents`` asks.

    They live in an in-memory SQLite database, created for the first of them, so that everything works as it does for
    persistent chats.
    """

    def __init__(
        self,
        settings: AppSettings,
        engine: ChatEngine,
        templates: Templates,
        tool_offers: ToolOffers,
        sources: Sources,
        closed_documents: ClosedDocuments,
    ) -> None:
        #: Set by :meth:`Services.open` before the first chat: the admission itself counts the replies of these chats.
        self.admission: Admission = UnlimitedAdmission()
        self._settings = settings
        self._engine = engine
        self._templates = templates
        self._tool_offers = tool_offers
        self._sources = sources
        self._closed_documents = closed_documents
        self._opening = asyncio.Lock()
        self._open: tuple[Database, Chats] | None = None

    async def begin(self, user_id: str) -> Chats:
        """Returns the services with which to start a temporary chat of this user; opens the database if needed."""
        async with self._opening:
            if self._open is None:
                database = Database(IN_MEMORY)
                await database.write(lambda session: command.upgrade(alembic_config(session.connection()), "head"))
                self._open = database, self._build(database)
            database, chats = self._open
        await database.write(lambda session: _admit(session, user_id))
        return chats

    async def find(self, id: str) -> Chats | None:
        """Returns these chats if they contain the conversation, message, turn or deletion with this id, else None."""
        if self._open is None:
            return None
        database, chats = self._open
        return chats if await database.read(lambda session: _contains(session, id)) else None

    def count_running(self, user_id: str) -> int:
        """Counts the user's replies in flight in temporary chats."""
        return self._open[1].turns.count_running(user_id) if self._open is not None else 0

    async def delete_expired(self) -> None:
        """Deletes the temporary chats without a message for :data:`TEMPORARY_HOURS`."""
        if self._open is not None:
            database, _chats = self._open
            await Retention(database).delete_older(datetime.now(UTC) - timedelta(hours=TEMPORARY_HOURS))

    async def delete_for_user(self, user_id: str) -> None:
        """Deletes all temporary chats of this user, with their replies in flight."""
        if self._open is None:
            return
        database, chats = self._open
        query = select(Conversation.id).where(Conversation.user_id == user_id)
        for conversation_id in await database.read(lambda session: session.scalars(query).all()):
            await chats.turns.delete_conversation(user_id, conversation_id)

    async def close(self) -> None:
        """Ends the replies in flight as those of persistent chats end, and drops the database."""
        if self._open is not None:
            database, chats = self._open
            await chats.turns.close()
            await database.close()

    def _build(self, database: Database) -> Chats:
        records = TurnRecords(database, new_id(), self._settings.lease_seconds)
        contexts, notifications = TurnContexts(database), Notifications(IN_MEMORY)
        limits = StorageLimits(max_bytes=TEMPORARY_BYTES, temporary=True)
        storage = StorageQuota(StorageUsageRecords(database), limits)
        return Chats(
            conversations=Conversations(database, self._closed_documents, limits),
            turns=Turns(
                self._settings,
                self._engine,
                records,
                contexts,
                self._templates,
                notifications,
                admission=self.admission,
                storage=storage,
                tool_offers=self._tool_offers,
                sources=self._sources,
            ),
            deletions=Deletions(database),
            feedback=FeedbackRecords(database),
            drafts=Drafts(
                self._settings,
                EngineRequests(self._engine, self.admission, accounts=self._settings.accounts),
                self._templates,
                self._sources,
                DraftRecords(database),
                storage,
            ),
        )


def _admit(session: Session, user_id: str) -> None:
    """Mirrors the account of the persistent database, which conversations refer to."""
    if session.get(Account, user_id) is None:
        session.add(Account(id=user_id, name=user_id, created_at=datetime.now(UTC)))


def _contains(session: Session, id: str) -> bool:
    return bool(
        session.scalar(
            select(
                or_(
                    exists().where(Conversation.id == id),
                    exists().where(or_(Message.id == id, Message.deletion == id)),
                    exists().where(Turn.id == id),
                )
            )
        )
    )
