"""Wakes snoozed cases whose time has come."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.domain import cases as rules
from app.domain.cases import SYSTEM, CaseStatus
from app.store.cases.case_rows import case_state
from app.store.cases.case_writes import apply
from app.store.cases.signals import CaseSignals
from app.store.db.case_models import SupportCase
from app.store.db.database import Database

BATCH = 100  # cases per transaction: other writers wait for one batch at most


class Snoozes:
    """Takes no user id: it applies to every inbox's cases."""

    def __init__(self, database: Database, signals: CaseSignals) -> None:
        self._database = database
        self._signals = signals

    async def wake_due(self) -> int:
        """Opens the cases whose snooze has ended, and returns how many. Another process may do so at the same time."""
        woken = 0
        while await self._database.read(_is_due):
            cases = await self._database.write(_wake_some)
            for case_id, inbox_id in cases:
                self._signals.changed(case_id, inbox_id)
            woken += len(cases)
            if len(cases) < BATCH:
                break
        return woken


def _is_due(session: Session) -> bool:
    return session.scalar(select(SupportCase.id).where(*_due(datetime.now(UTC))).limit(1)) is not None


def _due(now: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return SupportCase.snoozed_until <= now, SupportCase.status == CaseStatus.SNOOZED


def _wake_some(session: Session) -> list[tuple[str, str]]:
    now = datetime.now(UTC)
    due = session.scalars(
        select(SupportCase)
        .where(*_due(now))
        .order_by(SupportCase.id)
        .limit(BATCH)
        .with_for_update(skip_locked=True, key_share=True)
    ).all()
    for case in due:
        apply(session, case, rules.wake(case_state(case), SYSTEM), now)
    return [(case.id, case.inbox_id) for case in due]
