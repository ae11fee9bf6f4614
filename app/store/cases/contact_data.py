"""All that is stored of a contact, for admins who were asked for it or to delete it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.case_views import CaseEventView, CaseMessage, CaseView, ContactView
from app.errors import NotFound
from app.store.cases.access import require_admin
from app.store.cases.case_rows import case_events, case_messages, case_views, contact_view
from app.store.cases.outbox import forget_deliveries
from app.store.db.case_models import CaseEvent, Contact, SupportCase
from app.store.db.database import Database
from app.store.db.models import Conversation
from app.store.db.rows import change_rows, is_id
from app.store.desk.audit import add_event

BATCH = 50  # conversations per transaction: other writers wait for one batch at most


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredContact:
    """A contact with all cases. Agents' notes about the contact are personal data, too."""

    contact: ContactView
    cases: list[CaseView]
    messages: list[CaseMessage]
    events: list[CaseEventView]


class ContactDataRecords:
    """The repository of contacts' data. Every method takes the admin's id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, admin_id: str, contact_id: str) -> StoredContact:
        """Returns all that is stored of a contact.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: there is no such contact.
        """

        def work(session: Session) -> StoredContact:
            require_admin(session, admin_id)
            contact = _contact(session, contact_id)
            own = SupportCase.contact_id == contact_id
            ids = select(SupportCase.id).where(own)
            return StoredContact(
                contact=contact_view(contact),
                cases=case_views(session, select(SupportCase).where(own).order_by(SupportCase.id)),
                messages=case_messages(session, own),
                events=case_events(session, CaseEvent.case_id.in_(ids)),
            )

        return await self._database.read(work)

    async def erase(self, admin_id: str, contact_id: str) -> None:
        """Deletes a contact with cases, messages, files, tokens, and what webhooks were told of them. Safe to repeat.

        Figures forget the cases, too, since they are computed from their events.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: there is no such contact.
        """

        def some(session: Session) -> int:
            require_admin(session, admin_id)
            _contact(session, contact_id)
            ids = session.scalars(select(SupportCase.id).where(SupportCase.contact_id == contact_id).limit(BATCH)).all()
            forget_deliveries(session, ids)
            return change_rows(session, delete(Conversation).where(Conversation.id.in_(ids)))

        def rest(session: Session) -> None:
            # A message may have come meanwhile: this transaction deletes whatever is left.
            ids = session.scalars(select(SupportCase.id).where(SupportCase.contact_id == contact_id)).all()
            forget_deliveries(session, ids)
            change_rows(session, delete(Conversation).where(Conversation.id.in_(ids)))
            if change_rows(session, delete(Contact).where(Contact.id == contact_id)):
                add_event(session, admin_id, AuditAction.CONTACT_DELETED, contact_id, cases=number)

        def count(session: Session) -> int:
            require_admin(session, admin_id)
            _contact(session, contact_id)
            cases = select(func.count()).select_from(SupportCase).where(SupportCase.contact_id == contact_id)
            return session.scalar(cases) or 0

        number = await self._database.read(count)
        while await self._database.write(some) == BATCH:
            pass
        await self._database.write(rest)


def _contact(session: Session, contact_id: str) -> Contact:
    contact = session.get(Contact, contact_id) if is_id(contact_id) else None
    if contact is None:
        raise NotFound("There is no such contact. It may have been deleted.")
    return contact
