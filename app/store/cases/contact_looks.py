"""What a visitor's stream of events reads: whether anything has changed, and if so, all of it in one transaction.

A thousand visitors have a stream each, which look again and again: the first question is one prepared statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import Session

from app.domain.case_views import CaseMessage, CaseView, InboxView
from app.domain.cases import CaseStatus
from app.store.cases.case_rows import view_of
from app.store.cases.contact_cases import contact_messages, current_case, is_over
from app.store.cases.inboxes import inbox_view
from app.store.cases.visitors import Visitors
from app.store.db.case_models import Contact, Inbox, Satisfaction, SupportCase, VisitorToken
from app.store.db.database import Database
from app.store.db.models import UtcDateTime
from app.store.db.prepared_statements import Prepared


@dataclass(frozen=True, slots=True)
class ContactState:
    """The case that a contact's next message continues, and how often it has changed."""

    case_id: str | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactLook:
    """All that a visitor's stream tells of the case."""

    case: CaseView
    inbox: InboxView
    messages: list[CaseMessage]
    is_rated: bool


_STATE = Prepared(
    select(
        VisitorToken.last_seen_at,
        SupportCase.id,
        SupportCase.revision,
        SupportCase.status,
        SupportCase.resolved_at,
    )
    .select_from(VisitorToken)
    .join(Contact, Contact.id == VisitorToken.contact_id)
    .outerjoin(SupportCase, (SupportCase.contact_id == Contact.id) & SupportCase.merged_into.is_(None))
    .where(
        VisitorToken.token_hash == bindparam("token_hash"),
        VisitorToken.expires_at > bindparam("now", type_=UtcDateTime()),
        Contact.id == bindparam("contact_id"),
        Contact.inbox_id == bindparam("inbox_id"),
    )
    .order_by(SupportCase.id.desc())
    .limit(1)
)


class ContactLooks:
    """The reads of visitors' streams. Every method takes the contact's id, which a token has proven."""

    def __init__(self, database: Database, visitors: Visitors) -> None:
        self._database = database
        self._visitors = visitors

    async def state(self, contact_id: str, inbox_id: str, token_hash: str) -> ContactState | None:
        """What the contact's case is now; None if the token is not this contact's any more."""
        now = datetime.now(UTC)
        given = {"token_hash": token_hash, "now": now, "contact_id": contact_id, "inbox_id": inbox_id}

        def work(connection: Connection) -> tuple[Any, ...] | None:
            return _STATE.row(connection, given)

        row = await self._database.read_rows(work)
        if row is None:
            return None
        seen_at, case_id, revision, status, resolved_at = row
        await self._visitors.see(token_hash, contact_id, seen_at, now)
        if case_id is None or is_over(CaseStatus(status), resolved_at, now):
            return ContactState()
        return ContactState(case_id, revision)

    async def look(self, contact_id: str, case_id: str | None, after: int) -> ContactLook | None:
        """The contact's case with its messages after a position, and all of them if it is not the case ``case_id``.

        None if there is no case, or its inbox was deleted.
        """

        def work(session: Session) -> ContactLook | None:
            row = current_case(session, contact_id, datetime.now(UTC), lock=False)
            inbox = session.get(Inbox, row.inbox_id) if row is not None else None
            if row is None or inbox is None:
                return None
            case = view_of(session, row)
            start = after if case.id == case_id else -1
            is_resolved = case.status is CaseStatus.RESOLVED  # only then is a rating asked for
            return ContactLook(
                case=case,
                inbox=inbox_view(inbox),
                messages=contact_messages(session, contact_id, case.id, after=start),
                is_rated=is_resolved and session.get(Satisfaction, case.id) is not None,
            )

        return await self._database.read(work)
