"""Reads single cases for agents, with their talk and files. Every method takes the user's id."""

from __future__ import annotations

from sqlalchemy import literal, or_, select, tuple_
from sqlalchemy.orm import Session

from app.domain.case_views import CaseMessage, CaseView, OpenCase, RatingView
from app.errors import NotFound
from app.store.cases.access import read_case
from app.store.cases.case_rows import case_events, case_messages, case_view, case_views
from app.store.db.case_models import CaseAttachment, CaseEvent, Satisfaction, SupportCase
from app.store.db.database import Database
from app.store.db.models import Account, Message, UtcDateTime
from app.store.db.rows import is_id, shown_name

SHOWN_MESSAGES = 200
SHOWN_EVENTS = 500
SHOWN_OTHER_CASES = 20


class CaseDetails:
    """The repository of cases, one at a time, as agents read them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, user_id: str, case_id: str, *, before: str | None = None) -> OpenCase:
        """A case with its newest messages, those of the cases that were merged into it among them.

        Args:
            before: id of a message; return the messages above it instead.

        Raises:
            NotFound: the case, or the message in it, is missing, or the user may not read it.
        """

        def work(session: Session) -> OpenCase:
            row = read_case(session, user_id, case_id)
            whole = or_(SupportCase.id == row.id, SupportCase.merged_into == row.id)
            which = [whole]
            if before is not None:
                last = session.get(Message, before) if is_id(before) else None
                if last is None:
                    raise NotFound("There is no such message in this case.")
                which.append(
                    tuple_(Message.created_at, Message.position, Message.id)
                    < tuple_(literal(last.created_at, UtcDateTime()), literal(last.position), literal(last.id))
                )
            messages = case_messages(session, *which, limit=SHOWN_MESSAGES + 1)
            others = (
                select(SupportCase)
                .where(SupportCase.contact_id == row.contact_id, SupportCase.id != row.id)
                .order_by(SupportCase.id.desc())
                .limit(SHOWN_OTHER_CASES)
            )
            rating = session.get(Satisfaction, row.id)
            return OpenCase(
                case=case_view(session, row.id),
                messages=tuple(messages[-SHOWN_MESSAGES:]),
                has_earlier=len(messages) > SHOWN_MESSAGES,
                events=tuple(case_events(session, CaseEvent.case_id == row.id, limit=SHOWN_EVENTS)),
                other_cases=tuple(case_views(session, others)),
                rating=RatingView(rating.score, rating.comment) if rating is not None else None,
            )

        return await self._database.read(work)

    async def view(self, user_id: str, case_id: str) -> CaseView:
        """One case, without its messages.

        Raises:
            NotFound: it is missing, or the user may not read it.
        """
        return await self._database.read(lambda session: case_view(session, read_case(session, user_id, case_id).id))

    async def require_readable(self, user_id: str, case_id: str) -> str:
        """Returns the user's name if they may read the case.

        Raises:
            NotFound: it is missing, or the user may not read it.
        """

        def work(session: Session) -> str:
            read_case(session, user_id, case_id)
            return session.scalars(select(shown_name(Account)).where(Account.id == user_id)).one()

        return await self._database.read(work)

    async def attachment(self, user_id: str, case_id: str, attachment_id: str) -> tuple[str, str, bytes]:
        """Name, type and content of a file that the case's contact has sent.

        Raises:
            NotFound: it is missing, or the user may not read the case.
        """

        def work(session: Session) -> tuple[str, str, bytes]:
            row = read_case(session, user_id, case_id)
            whole = or_(SupportCase.id == row.id, SupportCase.merged_into == row.id)
            found = session.execute(
                select(CaseAttachment.name, CaseAttachment.type, CaseAttachment.content)
                .join(Message, Message.id == CaseAttachment.message_id)
                .join(SupportCase, SupportCase.conversation_id == Message.conversation_id)
                .where(CaseAttachment.id == (attachment_id if is_id(attachment_id) else ""), whole)
            ).one_or_none()
            if found is None:
                raise NotFound("There is no such file in this case.")
            return found.name, found.type, found.content

        return await self._database.read(work)

    async def message(self, user_id: str, case_id: str, message_id: str) -> CaseMessage:
        """One message of a case.

        Raises:
            NotFound: it is missing, or the user may not read the case.
        """

        def work(session: Session) -> CaseMessage:
            row = read_case(session, user_id, case_id)
            found = case_messages(session, SupportCase.id == row.id, Message.id == message_id)
            if not found:
                raise NotFound("There is no such message in this case.")
            return found[0]

        return await self._database.read(work)
