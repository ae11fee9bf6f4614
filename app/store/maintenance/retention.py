"""Deleting what is older than is kept."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CursorResult, delete, exists, select
from sqlalchemy.orm import Session

from app.store.db.database import Database
from app.store.db.models import Conversation, Turn

BATCH = 50  # conversations per transaction: others wait for one batch at most


class Retention:
    """The repository of what has had its time. Without a user: it is the server's rule, for all of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def delete_older(self, than: datetime) -> int:
        """Delete the conversations whose last message is older; returns how many. One that is replied in stays."""
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
