"""Reads the events that figures are computed from, those of the inboxes that the user may read."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.case_figures import COUNTED, CountedEvent, FiguresReport, report_on
from app.domain.cases import AuthorKind, CaseEventKind
from app.domain.usage import Days
from app.store.cases.access import may_read
from app.store.db.case_models import CaseEvent, Inbox
from app.store.db.database import Database
from app.store.db.models import Account
from app.store.db.rows import is_id, shown_name

ROWS_AT_ONCE = 1000


class CaseFigures:
    """The repository of figures. Every method takes the user's id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(self, user_id: str, days: Days, inbox_id: str | None = None) -> FiguresReport:
        """The figures of these days: of all inboxes that the user may read, or of one of them."""

        def work(session: Session) -> FiguresReport:
            which = [may_read(user_id, Inbox.id)]
            if inbox_id is not None:
                which.append(Inbox.id == (inbox_id if is_id(inbox_id) else ""))
            inboxes = dict(session.execute(select(Inbox.id, Inbox.name).where(*which)).tuples().all())
            rows = session.execute(
                select(
                    CaseEvent.case_id,
                    CaseEvent.inbox_id,
                    CaseEvent.kind,
                    CaseEvent.reason,
                    CaseEvent.actor_kind,
                    CaseEvent.actor_id,
                    CaseEvent.at,
                    CaseEvent.details,
                )
                .where(
                    CaseEvent.inbox_id.in_(list(inboxes)),
                    CaseEvent.at >= days.whole.begins,
                    CaseEvent.at < days.whole.ends,
                    CaseEvent.kind.in_([str(kind) for kind in COUNTED]),
                )
                .order_by(CaseEvent.at, CaseEvent.sequence)
                .execution_options(yield_per=ROWS_AT_ONCE)
            )
            agents = dict(
                session.execute(select(Account.id, shown_name(Account)).where(Account.kind == "person")).tuples().all()
            )
            events = (
                CountedEvent(
                    row.case_id,
                    row.inbox_id,
                    CaseEventKind(row.kind),
                    row.reason,
                    AuthorKind(row.actor_kind),
                    row.actor_id,
                    row.at,
                    row.details,
                )
                for row in rows
            )
            names = [span.name for span in days.each()]
            return report_on(events, names, ZoneInfo(days.zone), agents=agents, inboxes=inboxes)

        return await self._database.read(work)
