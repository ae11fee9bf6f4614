"""Leases on running turns: a turn belongs to its owner process for as long as the owner renews the lease."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from app.domain.views import MessageStatus
from app.store.db.database import Database, is_postgres
from app.store.db.models import Message, Turn
from app.store.db.notifications import Channel, notify

SWEPT = "The server stopped while this reply was being written."


def lease_until(session: Session, seconds: float) -> datetime | ColumnElement[datetime]:
    """The end of a lease that begins now.

    On PostgreSQL by the database's clock, because processes on different machines compare it. SQLite has one process,
    which compares it with nothing.
    """
    lease = timedelta(seconds=seconds)
    return func.now() + lease if is_postgres(session) else datetime.now(UTC) + lease


class Leases:
    """Interrupts turns whose owner has died. Takes no user id: it applies to every user's turns.

    Args:
        owner: id of this start of the process.
        seconds: length of a lease.
    """

    def __init__(self, database: Database, owner: str, seconds: float) -> None:
        self._database = database
        self._owner = owner
        self._seconds = seconds

    async def now(self) -> datetime:
        """The database's time. PostgreSQL only."""
        return await self._database.read(lambda session: session.execute(select(func.now())).scalar_one())

    async def sweep_at_start(self) -> int:
        """Interrupts the turns that dead processes left running and returns how many.

        On SQLite that is every turn of another owner: this process holds the file's lock, so the others are dead.
        """

        def work(session: Session) -> int:
            return _interrupt(session, _expired(self._seconds) if is_postgres(session) else Turn.owner != self._owner)

        return await self._database.write(work)

    async def sweep_expired(self, before: datetime, alive: Collection[str] = ()) -> int:
        """Interrupts the turns whose lease ended before ``before``, a time from :meth:`now`, and returns how many.

        ``before`` lies in the past, so that owners that could not reach the database have had time to renew leases.

        Args:
            alive: ids of turns to leave alone.
        """
        ended = and_(or_(Turn.lease_until.is_(None), Turn.lease_until < before), Turn.id.not_in(alive))
        return await self._database.write(lambda session: _interrupt(session, ended))


def _expired(seconds: float) -> ColumnElement[bool]:
    """Whether a lease has expired by PostgreSQL's clock, and the server has been up long enough for owners to renew."""
    lease = timedelta(seconds=seconds)
    return or_(
        Turn.lease_until.is_(None),
        and_(Turn.lease_until < func.now(), func.pg_postmaster_start_time() < func.now() - lease),
    )


def _interrupt(session: Session, which: ColumnElement[bool]) -> int:
    # A locked row is being written, so its owner is alive.
    taken = session.execute(
        select(Turn.id, Turn.message_id).where(Turn.status == "running", which).with_for_update(skip_locked=True)
    ).all()
    if not taken:
        return 0
    session.execute(
        update(Message)
        .where(Message.id.in_([message_id for _, message_id in taken]))
        .values(status=MessageStatus.INTERRUPTED)
        .execution_options(synchronize_session=False)
    )
    session.execute(
        update(Turn)
        .where(Turn.id.in_([turn_id for turn_id, _ in taken]))
        .values(status=MessageStatus.INTERRUPTED, ended_at=datetime.now(UTC), error=SWEPT)
        .execution_options(synchronize_session=False)
    )
    for turn_id, _ in taken:
        notify(session, Channel.CHANGED, turn_id)
        notify(session, Channel.STOP_REQUESTED, turn_id)
    return len(taken)
