"""The state of scheduled backups, and the lease by which one server at a time makes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, insert, inspect, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from app.domain.backups import BackupPlan, BackupState
from app.store.chat.leases import lease_until
from app.store.db.database import Database, is_postgres, open_snapshot
from app.store.db.maintenance_models import BackupRun
from app.store.db.rows import change_rows
from app.store.maintenance.migrate import cannot_open, sqlite_file
from app.store.maintenance.writable_folder import file_exists

LEASE_SECONDS = 120.0
"""Without a renewal for this long, a server that makes a backup is dead, and another one may begin."""
_ROW = 1


class BackupRuns:
    """The repository of scheduled backups.

    Args:
        owner: id of this start of the process.
    """

    def __init__(self, database: Database, owner: str) -> None:
        self._database = database
        self._owner = owner

    async def state(self) -> BackupState:
        """The present state."""
        return await self._database.read(lambda session: _state(session, session.get(BackupRun, _ROW)))

    async def claim(self, plan: BackupPlan) -> BackupState | None:
        """Takes the lease for a backup that is due; returns the state from before. None: it is not due, or another
        server makes it."""

        def work(session: Session) -> BackupState | None:
            row = session.get(BackupRun, _ROW, with_for_update=True)
            if row is None:
                try:
                    with session.begin_nested():
                        session.execute(insert(BackupRun).values(id=_ROW))
                except IntegrityError:  # another server began at the same moment
                    return None
                row = session.get_one(BackupRun, _ROW, with_for_update=True)
            before = _state(session, row)
            if before.is_running or not plan.is_due(before, datetime.now(UTC)):
                return None
            self._set(session, started_at=datetime.now(UTC), lease_until=lease_until(session, LEASE_SECONDS))
            session.execute(update(BackupRun).values(owner=self._owner))
            return before

        return await self._database.write(work)

    async def renew(self) -> bool:
        """Renews the lease; False if another server has taken it."""

        def work(session: Session) -> bool:
            renewed = update(BackupRun).where(BackupRun.owner == self._owner)
            return change_rows(session, renewed.values(lease_until=lease_until(session, LEASE_SECONDS))) > 0

        return await self._database.write(work)

    async def succeed(self, file: str, size: int, check: str) -> None:
        """Records a good backup and gives the lease back."""
        values = {"good_at": datetime.now(UTC), "good_file": file, "good_bytes": size, "good_check": check}
        await self._end(**values)

    async def fail(self, error: str) -> None:
        """Records a failure and gives the lease back."""
        await self._end(failed_at=datetime.now(UTC), error=error)

    async def release(self, before: BackupState) -> None:
        """Gives the lease back as if no backup had begun: the server shuts down."""
        await self._end(started_at=before.started_at)

    async def _end(self, **values: Any) -> None:
        await self._database.write(lambda session: self._set(session, lease_until=None, **values, mine=True))

    def _set(self, session: Session, *, mine: bool = False, **values: Any) -> None:
        row = update(BackupRun).where(BackupRun.owner == self._owner) if mine else update(BackupRun)
        change_rows(session, row.values(**values))


def read_state(url: str) -> BackupState:
    """The state in the database at ``url``, without a server; that of no backups if there is no such database yet.

    Raises:
        StartupError: the database cannot be opened.
    """
    file = sqlite_file(url)
    if file is not None and not file_exists(file):
        return BackupState()
    try:
        with open_snapshot(url) as connection:
            if not inspect(connection).has_table(BackupRun.__tablename__):
                return BackupState()
            with Session(connection) as session:
                return _state(session, session.get(BackupRun, _ROW))
    except SQLAlchemyError as error:
        raise cannot_open(url, error) from error


def _state(session: Session, row: BackupRun | None) -> BackupState:
    if row is None:
        return BackupState()
    now = session.scalars(select(func.now())).one() if is_postgres(session) else datetime.now(UTC)
    return BackupState(
        started_at=row.started_at,
        is_running=row.lease_until is not None and row.lease_until > now,
        good_at=row.good_at,
        good_file=row.good_file,
        good_bytes=row.good_bytes,
        good_check=row.good_check,
        failed_at=row.failed_at,
        error=row.error,
    )
