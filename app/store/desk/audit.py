"""Writes the audit log."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.store.db.database import Database
from app.store.db.models import AuditEvent

Detail = str | int | float | bool | None


class Audit:
    """The append-only repository of audit entries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(
        self, actor_id: str | None, action: AuditAction, target: str | None = None, **details: Detail
    ) -> None:
        """Writes one audit entry.

        Args:
            actor_id: the user who acted; None if no user was signed in.
            target: the id or name of the object acted on.
            details: numbers, ids, roles, and names of what may be deleted: never a text that a user wrote.

        Raises:
            StorageUnavailable: the database is unavailable.
        """
        await self._database.write(lambda session: add_event(session, actor_id, action, target, **details))


def add_event(
    session: Session, actor_id: str | None, action: AuditAction, target: str | None = None, **details: Detail
) -> None:
    """As :meth:`Audit.record`, within a transaction: the entry is committed if and only if the act is."""
    session.add(
        AuditEvent(
            id=new_id(), at=datetime.now(UTC), actor_id=actor_id, action=action.value, target=target, details=details
        )
    )
