"""What a visitor's stream of events reads: whether anything has changed, and if so, all of it in one transaction.

A thousand visitors have a stream each, which look again and again: the first question is one prepared statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, literal, select

from app.domain.case_views import CaseMessage, CaseView, InboxView
from app.domain.cases import CaseStatus
from app.store.cases.contact_cases import contact_messages, is_over
from app.store.cases.visitor_reads import newest_case
from app.store.cases.visitors import Visitors
from app.store.db.case_models import Contact, Satisfaction, SupportCase, VisitorToken
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
_RATED = Prepared(select(literal(1)).where(Satisfaction.case_id == bindparam("case_id")))


class ContactLooks:
    """The reads of visitors' streams. Every method takes the contact's id, which a token has proven."""

    def __init__(self, database: Database, visitors: Visitors) -> None:
        self._database = database
        self._visitors = visitors

    async def look(
        self,
        contact_id: str,
        inbox_id: str,
        token_hash: str,
        *,
        case_id: str | None = None,
        after: int = -1,
        unless: ContactState | None = None,
    ) -> tuple[ContactState, ContactLook | None] | None:
        """What the contact's case is now, and the case with its messages after a position; all of them if it is not
        the case ``case_id``. None if the token is not this contact's any more.

        There is no look if there is no case, or its inbox was deleted, or while the state is ``unless``.
        """

        now = datetime.now(UTC)
        given = {"token_hash": token_hash, "now": now, "contact_id": contact_id, "inbox_id": inbox_id}

        def read(connection: Connection) -> tuple[datetime, ContactState, ContactLook | None] | None:
            row = _STATE.row(connection, given)
            if row is None:
                return None
            seen_at, newest_id, revision, status, resolved_at = row
            state = ContactState()
            if newest_id is not None and not is_over(CaseStatus(status), resolved_at, now):
                state = ContactState(newest_id, revision)
            return seen_at, state, look(connection, state)

        def look(connection: Connection, state: ContactState) -> ContactLook | None:
            found = newest_case(connection, contact_id) if state.case_id is not None and state != unless else None
            if found is None:
                return None
            case, inbox = found
            start = after if case.id == case_id else -1
            is_resolved = case.status is CaseStatus.RESOLVED  # only then is a rating asked for
            return ContactLook(
                case=case,
                inbox=inbox,
                messages=contact_messages(connection, contact_id, case.id, after=start),
                is_rated=is_resolved and _RATED.row(connection, {"case_id": case.id}) is not None,
            )

        found = await self._database.read_rows(read)
        if found is None:
            return None
        seen_at, state, seen = found
        await self._visitors.see(token_hash, contact_id, seen_at, now)
        return state, seen
