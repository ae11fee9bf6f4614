"""Conversations and the replies that are written in them, over one database: the one that lasts, or one in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from alembic import command
from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from app.domain.ids import new_id
from app.domain.storage import TEMPORARY_BYTES, StorageLimits
from app.settings import AppSettings
from app.store.chat.conversations import Conversations
from app.store.chat.deletions import Deletions
from app.store.chat.feedback import FeedbackRecords
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
from app.turns.service import Turns
from app.turns.storage_quota import StorageQuota
from engine import ChatEngine

TEMPORARY_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats:
    """What can be done with the conversations of one database."""

    conversations: Conversations
    turns: Turns
    deletions: Deletions
    feedback: FeedbackRecords


class TemporaryChats:
    """Chats in this process's memory and nowhere else. They end with it, or a day after their last message.

    They live in a SQLite database without a file, which is made for the first of them, so that everything works for
    them as it does for the others.
    """

    def __init__(self, settings: AppSettings, engine: ChatEngine, templates: Templates) -> None:
        #: Who may have a reply; set before the first chat begins, for it asks these chats in turn.
        self.admission: Admission = UnlimitedAdmission()
        self._settings = settings
        self._engine = engine
        self._templates = templates
        self._opening = asyncio.Lock()
        self._open: tuple[Database, Chats] | None = None

    async def begin(self, user_id: str) -> Chats:
        """Where this user's next one is to begin."""
        async with self._opening:
            if self._open is None:
                database = Database(IN_MEMORY)
                await database.write(lambda session: command.upgrade(alembic_config(session.connection()), "head"))
                self._open = database, self._build(database)
            database, chats = self._open
        await database.write(lambda session: _admit(session, user_id))
        return chats

    async def find(self, id: str) -> Chats | None:
        """These chats, if the conversation, message, turn or deletion of this id is one of theirs."""
        if self._open is None:
            return None
        database, chats = self._open
        return chats if await database.read(lambda session: _contains(session, id)) else None

    def count_running(self, user_id: str) -> int:
        """How many replies are being written for somebody in these chats."""
        return self._open[1].turns.count_running(user_id) if self._open is not None else 0

    async def delete_expired(self) -> None:
        """Let go of those in which nobody has written for a day."""
        if self._open is not None:
            database, _chats = self._open
            await Retention(database).delete_older(datetime.now(UTC) - timedelta(hours=TEMPORARY_HOURS))

    async def delete_for_user(self, user_id: str) -> None:
        """Let go of all that is this user's, with replies that are being written."""
        if self._open is None:
            return
        database, chats = self._open
        theirs = select(Conversation.id).where(Conversation.user_id == user_id)
        for conversation_id in await database.read(lambda session: session.scalars(theirs).all()):
            await chats.turns.delete_conversation(user_id, conversation_id)

    async def close(self) -> None:
        """End the replies in flight as the others do, and forget everything."""
        if self._open is not None:
            database, chats = self._open
            await chats.turns.close()
            await database.close()

    def _build(self, database: Database) -> Chats:
        records = TurnRecords(database, new_id(), self._settings.lease_seconds)
        contexts, nobody = TurnContexts(database), Notifications(IN_MEMORY)
        limits = StorageLimits(max_bytes=TEMPORARY_BYTES, temporary=True)
        return Chats(
            conversations=Conversations(database, limits),
            turns=Turns(
                self._settings,
                self._engine,
                records,
                contexts,
                self._templates,
                nobody,
                admission=self.admission,
                storage=StorageQuota(StorageUsageRecords(database), limits),
                is_alone=True,
            ),
            deletions=Deletions(database),
            feedback=FeedbackRecords(database),
        )


def _admit(session: Session, user_id: str) -> None:
    """Whoever has an account in the other database has one here."""
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
