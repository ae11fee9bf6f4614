"""What contacts wrote to another program, such as by e-mail: it hands it in with the rights of its key's user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain import cases as rules
from app.domain.case_views import CaseMessage, CaseView
from app.domain.cases import Actor, AuthorKind
from app.domain.ids import new_id
from app.errors import Conflict, NotAllowed, NotFound
from app.store.cases.access import NO_CASE, NO_INBOX, READ_ONLY, may_read, may_work, read_case, worked_case
from app.store.cases.case_rows import case_state, case_view
from app.store.cases.case_writes import append_message, apply, checked_message, find_message, require_same
from app.store.cases.contact_cases import current_case, locked_contact, new_case
from app.store.cases.signals import CaseSignals
from app.store.db.case_models import Contact, Inbox
from app.store.db.database import Database
from app.store.db.rows import is_id


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedContact:
    """A contact as the program knows it."""

    external_id: str  #: the program's own id of it, such as its e-mail address
    name: str | None = None
    email: str | None = None
    language: str | None = None


class ReceivedMessages:
    """Contacts' messages that a user's program hands in. The contact is locked first, then its case, as in
    :class:`app.store.cases.contact_cases.ContactCases`."""

    def __init__(self, database: Database, signals: CaseSignals, *, max_message_chars: int) -> None:
        self._database = database
        self._signals = signals
        self._max_message_chars = max_message_chars

    async def receive(
        self, user_id: str, inbox_id: str, named: NamedContact, text: str, *, client_id: str
    ) -> tuple[CaseMessage, CaseView]:
        """Stores a message, once for each ``client_id`` of a contact, in the contact's case or a new one.

        A contact that the inbox does not know is created; what the website has proven of one is left as it is.

        Raises:
            InvalidInput: the text is empty or too long.
            NotFound: the inbox is missing, or the user may not read it.
            NotAllowed: the user may only read it.
            Conflict: the ``client_id`` is another message's.
        """
        text, checked = checked_message(text, client_id, self._max_message_chars)

        def work(session: Session) -> tuple[CaseMessage, CaseView]:
            inbox = _worked_inbox(session, user_id, inbox_id)
            now = datetime.now(UTC)
            contact = _contact(session, inbox, named, now)
            actor = Actor(AuthorKind.CONTACT, contact.id)
            if (found := find_message(session, contact.id, checked)) is not None:
                require_same(found, actor, text)
                return found, case_view(session, found.case_id)
            case = current_case(session, contact.id, now)
            if case is None:
                case = new_case(session, contact, inbox, text, now)
            else:
                apply(session, case, rules.contact_wrote(case_state(case), actor, now, bot=inbox.bot), now)
            message = append_message(session, case, actor, text, now, client_id=checked)
            return message, case_view(session, case.id)

        try:
            stored = await self._database.write(work)
        except IntegrityError:  # a message of the same new contact came at once: the second attempt finds it
            stored = await self._database.write(work)
        return self._told(stored)

    async def receive_in(
        self, user_id: str, case_id: str, text: str, *, client_id: str
    ) -> tuple[CaseMessage, CaseView]:
        """Stores a message of a case's contact in this case, once for each ``client_id``.

        Raises:
            InvalidInput: the text is empty or too long.
            NotFound: the case is missing, or the user may not read it.
            NotAllowed: the user may only read it.
            Conflict: the ``client_id`` is another message's, or the case was merged into another one.
        """
        text, checked = checked_message(text, client_id, self._max_message_chars)

        def work(session: Session) -> tuple[CaseMessage, CaseView]:
            contact = locked_contact(session, read_case(session, user_id, case_id).contact_id, missing=NO_CASE)
            case = worked_case(session, user_id, case_id)
            actor = Actor(AuthorKind.CONTACT, contact.id)
            if (found := find_message(session, contact.id, checked)) is not None:
                require_same(found, actor, text)
                return found, case_view(session, found.case_id)
            if case.merged_into is not None:
                address = f"/api/cases/{case.merged_into}/messages"
                raise Conflict(f"This case was merged into another one. Send the message to POST {address}.")
            now, inbox = datetime.now(UTC), session.get_one(Inbox, case.inbox_id)
            apply(session, case, rules.contact_wrote(case_state(case), actor, now, bot=inbox.bot), now)
            message = append_message(session, case, actor, text, now, client_id=checked)
            return message, case_view(session, case.id)

        return self._told(await self._database.write(work))

    def _told(self, stored: tuple[CaseMessage, CaseView]) -> tuple[CaseMessage, CaseView]:
        view = stored[1]
        self._signals.changed(view.id, view.inbox_id, view.contact.id)
        return stored


def _worked_inbox(session: Session, user_id: str, inbox_id: str) -> Inbox:
    readable = select(Inbox).where(Inbox.id == inbox_id, may_read(user_id, Inbox.id))
    inbox = session.scalars(readable).one_or_none() if is_id(inbox_id) else None
    if inbox is None:
        raise NotFound(NO_INBOX)
    if session.scalar(select(Inbox.id).where(Inbox.id == inbox_id, may_work(user_id, Inbox.id))) is None:
        raise NotAllowed(READ_ONLY)
    return inbox


def _contact(session: Session, inbox: Inbox, named: NamedContact, now: datetime) -> Contact:
    contact = session.scalars(
        select(Contact)
        .where(Contact.inbox_id == inbox.id, Contact.external_id == named.external_id)
        .with_for_update(key_share=True)
    ).one_or_none()
    if contact is None:
        contact = Contact(
            id=new_id(),
            inbox_id=inbox.id,
            external_id=named.external_id,
            verified=False,
            created_at=now,
            last_seen_at=now,
        )
        session.add(contact)
    contact.last_seen_at = now
    if not contact.verified:
        contact.name = named.name or contact.name
        contact.email = named.email or contact.email
        contact.language = named.language or contact.language
    session.flush()
    return contact
