"""Deletes conversations and stored responses past the retention period."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, exists, func, select
from sqlalchemy.orm import Session

from app.store.cases.outbox import forget_deliveries
from app.store.db.case_models import SupportCase
from app.store.db.database import Database
from app.store.db.models import Conversation, Turn
from app.store.db.response_models import StoredResponse
from app.store.db.rows import change_rows

BATCH = 50  # conversations, or chains of responses, per transaction: other writers wait for one batch at most


class Retention:
    """The repository of what has expired. Takes no user id: retention is a server setting for all users."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def delete_older(self, than: datetime) -> int:
        """Deletes the conversations whose last message is older; returns how many.

        Skips those with a running reply, and cases that are not resolved.
        """
        total = 0
        while True:
            deleted = await self._database.write(lambda session: _delete_some(session, than))
            total += deleted
            if deleted < BATCH:
                return total

    async def delete_older_responses(self, than: datetime) -> int:
        """Deletes the stored responses in whose chain, or any branch of it, none is younger; returns how many."""
        total = 0
        while deleted := await self._database.write(lambda session: _delete_some_responses(session, than)):
            total += deleted
        return total


def _delete_some_responses(session: Session, than: datetime) -> int:
    old = (
        select(StoredResponse.thread_id)
        .group_by(StoredResponse.thread_id)
        .having(func.max(StoredResponse.created_at) < than)
        .limit(BATCH)
    )
    threads = session.scalars(old).all()
    expired = delete(StoredResponse).where(StoredResponse.thread_id.in_(threads), StoredResponse.created_at < than)
    return change_rows(session, expired)


def _delete_some(session: Session, than: datetime) -> int:
    running = exists().where(Turn.conversation_id == Conversation.id, Turn.status == "running")
    unresolved = exists().where(SupportCase.id == Conversation.id, SupportCase.status != "resolved")
    old = select(Conversation.id).where(Conversation.updated_at < than, ~running, ~unresolved).limit(BATCH)
    ids = session.scalars(old).all()
    forget_deliveries(session, ids)  # of cases, whose ids are their conversations'
    return change_rows(session, delete(Conversation).where(Conversation.id.in_(ids)))
