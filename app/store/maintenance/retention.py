"""Deletes conversations past the retention period."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CursorResult, delete, exists, select
from sqlalchemy.orm import Session

from app.store.db.database import Database
from app.store.db.models import Conversation, Turn

BATCH = 50  # conversations per transaction: other writers wait for one batch at most


class Retention:
    """The repository of expired conversations. Takes no user id: retention is a server setting for all users."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def delete_older(self, than: datetime) -> int:
        """Deletes the conversations whose last message is older; returns how many. Skips those with a running reply."""
        total = 0
        while True:
            deleted = await self._database.write(lambda session: _delete_some(session, than))
            total += deleted
            if deleted < BATCH:
                return total


def _delete_some(session: Session, than: datetime) -> int:
    running = exists().where(Turn.conversation_id == Conversation.id, Turn.status == "running")
    old = select(Conversation.id).where(Conversation.updated_at < than, ~running).limit(BATCH)
    done = session.execute(
        delete(Conversation)
        .where(Conversation.id.in_(session.scalars(old).all()))
        .execution_options(synchronize_session=False)
    )
    assert isinstance(done, CursorResult)
    return done.rowcount
