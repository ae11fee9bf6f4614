"""Writing down who did what."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.store.db.database import Database
from app.store.db.models import AuditEvent

Detail = str | int | float | bool | None


class Audit:
    """The repository of deeds. Nothing here is ever changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(
        self, actor_id: str | None, action: AuditAction, target: str | None = None, **details: Detail
    ) -> None:
        """Write down one deed.

        Args:
            actor_id: whose it is; None where nobody was signed in.
            target: the id, or the name, of what it was done to.
            details: numbers, ids, roles: never what anybody wrote.

        Raises:
            StorageUnavailable: the database does not work.
        """
        await self._database.write(lambda session: add_event(session, actor_id, action, target, **details))


def add_event(
    session: Session, actor_id: str | None, action: AuditAction, target: str | None = None, **details: Detail
) -> None:
    """The same within a transaction, so that the deed is written down if and only if it is done."""
    session.add(
        AuditEvent(
            id=new_id(), at=datetime.now(UTC), actor_id=actor_id, action=action.value, target=target, details=details
        )
    )
