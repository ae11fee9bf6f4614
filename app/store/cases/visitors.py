"""Contacts and their tokens: a visitor's browser is a contact that has proven nothing, until a website signs for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import bindparam, delete, exists, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.case_views import ContactView
from app.domain.cases import AuthorKind
from app.domain.ids import new_id
from app.errors import Conflict, NotFound
from app.store.cases.case_rows import contact_view
from app.store.db.case_models import CaseAttachment, CaseEvent, Contact, Inbox, SupportCase, VisitorToken
from app.store.db.database import Database
from app.store.db.models import Message, UtcDateTime, table_of
from app.store.db.prepared_statements import Prepared, insert_into
from app.store.db.rows import change_rows

TOKEN_DAYS = 180
UNSENT_DAYS = 1  # a file that no message has taken is deleted
SEEN_SECONDS = 300  # a visit is written at most this often


# Each request of a visitor asks this.
_CONTACT_OF = Prepared(
    select(Contact.id, Contact.inbox_id, VisitorToken.last_seen_at)
    .select_from(VisitorToken)
    .join(Contact, Contact.id == VisitorToken.contact_id)
    .where(
        VisitorToken.token_hash == bindparam("token_hash"),
        VisitorToken.expires_at > bindparam("now", type_=UtcDateTime()),
    )
)
# Each new visitor runs these.
_NEW_TOKEN = insert_into(table_of(VisitorToken), "token_hash contact_id created_at last_seen_at expires_at")
_OWNER = Prepared(select(Inbox.user_id).where(Inbox.id == bindparam("inbox_id")))


@dataclass(frozen=True, slots=True)
class Visitor:
    """The contact of a valid token."""

    contact: ContactView
    inbox_user_id: str  #: the account that owns the inbox's conversations
    expires_at: datetime


class Visitors:
    """The repository of contacts and visitor tokens. Only hashes of tokens are stored."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        inbox_id: str,
        token_hash: str,
        *,
        external_id: str | None = None,
        name: str | None = None,
        email: str | None = None,
        language: str | None = None,
        time_zone: str | None = None,
    ) -> Visitor:
        """Adds a token for a new contact, or for the known one with this ``external_id``, which has been proven.

        Raises:
            NotFound: the inbox was deleted.
        """

        def work(session: Session) -> Visitor:
            now = datetime.now(UTC)
            contact = None
            if external_id is not None:
                contact = _known(session, inbox_id, external_id)
            if contact is None:
                contact = Contact(
                    id=new_id(),
                    inbox_id=inbox_id,
                    external_id=external_id,
                    verified=external_id is not None,
                    created_at=now,
                )
            contact.verified = external_id is not None  # a program may have brought the contact, unproven
            _fill(contact, name=name, email=email, language=language, time_zone=time_zone)
            contact.last_seen_at = now
            session.add(contact)
            session.flush()
            return _add_token(session, token_hash, contact, now)

        try:
            return await self._database.write(work)
        except IntegrityError as error:
            # The inbox was deleted meanwhile, or the same identity came twice at once: the second attempt finds it.
            if external_id is not None:
                try:
                    return await self._database.write(work)
                except IntegrityError:
                    pass
            raise NotFound("There is no such inbox. It may have been deleted.") from error

    async def find(self, token_hash: str, inbox_id: str | None = None) -> Visitor | None:
        """The visitor with this token; None if it is unknown, expired, or of another inbox than ``inbox_id``."""
        now = datetime.now(UTC)

        def work(session: Session) -> tuple[Visitor, datetime] | None:
            query = (
                select(VisitorToken, Contact, Inbox.user_id)
                .join(Contact, Contact.id == VisitorToken.contact_id)
                .join(Inbox, Inbox.id == Contact.inbox_id)
                .where(VisitorToken.token_hash == token_hash, VisitorToken.expires_at > now)
            )
            if inbox_id is not None:
                query = query.where(Contact.inbox_id == inbox_id)
            row = session.execute(query).one_or_none()
            if row is None:
                return None
            token, contact, user_id = row
            return Visitor(contact_view(contact), user_id, token.expires_at), token.last_seen_at

        found = await self._database.read(work)
        if found is None:
            return None
        visitor, seen_at = found
        await self.see(token_hash, visitor.contact.id, seen_at, now)
        return visitor

    async def contact_of(self, token_hash: str) -> tuple[str, str] | None:
        """The ids of the token's contact and of its inbox; None if the token is unknown or has expired."""
        now = datetime.now(UTC)
        given = {"token_hash": token_hash, "now": now}
        row = await self._database.read_rows(lambda connection: _CONTACT_OF.row(connection, given))
        if row is None:
            return None
        contact_id, inbox_id, seen_at = row
        await self.see(token_hash, contact_id, seen_at, now)
        return contact_id, inbox_id

    async def see(self, token_hash: str, contact_id: str, seen_at: datetime, now: datetime) -> None:
        """Notes a visit at ``now``, at most every :data:`SEEN_SECONDS` after ``seen_at``."""
        if now - seen_at > timedelta(seconds=SEEN_SECONDS):
            await self._database.write(lambda session: _seen(session, token_hash, contact_id, now))

    async def identify(
        self, token_hash: str, new_hash: str, *, external_id: str, name: str | None = None, email: str | None = None
    ) -> Visitor | None:
        """Makes the visitor the contact with this proven id, under a new token; None if the token is not valid.

        The old token ends in the same transaction: another person may know it. A contact that has proven nothing
        becomes that contact, and its cases are that contact's from now on. Cases of a contact with another proven id
        stay with it: another customer has signed in on the same computer.
        """

        def work(session: Session) -> Visitor | None:
            now = datetime.now(UTC)
            contact = session.scalars(
                select(Contact)
                .join(VisitorToken, VisitorToken.contact_id == Contact.id)
                .where(VisitorToken.token_hash == token_hash, VisitorToken.expires_at > now)
                .with_for_update()
            ).one_or_none()
            if contact is None:
                return None
            unproven = contact.external_id is None
            ended = VisitorToken.contact_id == contact.id if unproven else VisitorToken.token_hash == token_hash
            session.execute(delete(VisitorToken).where(ended))
            known = _known(session, contact.inbox_id, external_id)
            if known is None and unproven:
                contact.external_id, contact.verified = external_id, True
                known = contact
            elif known is None:  # another customer signs in on the same browser
                known = Contact(
                    id=new_id(), inbox_id=contact.inbox_id, external_id=external_id, verified=True, created_at=now
                )
            elif unproven:
                _move(session, contact, known)
            known.verified = True  # a program may have brought the contact
            _fill(known, name=name, email=email)
            known.last_seen_at = now
            session.add(known)
            session.flush()
            return _add_token(session, new_hash, known, now)

        try:
            return await self._database.write(work)
        except IntegrityError:  # the same identity came twice at once: the second attempt finds it
            return await self._database.write(work)

    async def edit(self, contact_id: str, *, name: str | None, email: str | None) -> ContactView:
        """Stores what a contact says of itself. A verified contact's data comes from the website alone.

        Raises:
            NotFound: the contact was deleted.
            Conflict: the contact is verified.
        """

        def work(session: Session) -> ContactView:
            contact = session.get(Contact, contact_id, with_for_update=True)
            if contact is None:
                raise NotFound("There is no such contact. It may have been deleted.")
            if contact.verified:
                raise Conflict("The website has told who you are. Change your data there.")
            contact.name, contact.email = name or None, email or None
            return contact_view(contact)

        return await self._database.write(work)

    async def delete_expired(self) -> int:
        """Deletes tokens that have expired, files that no message has taken, and contacts that have neither token nor
        case any more; returns how many of all of them."""
        now = datetime.now(UTC)
        old = now - timedelta(days=UNSENT_DAYS)
        has_token = exists().where(VisitorToken.contact_id == Contact.id)
        has_case = exists().where(SupportCase.contact_id == Contact.id)
        gone = (
            delete(VisitorToken).where(VisitorToken.expires_at <= now),
            delete(CaseAttachment).where(CaseAttachment.message_id.is_(None), CaseAttachment.created_at <= old),
            delete(Contact).where(~has_token, ~has_case, Contact.created_at <= old),
        )
        return await self._database.write(lambda session: sum(change_rows(session, one) for one in gone))


def _known(session: Session, inbox_id: str, external_id: str) -> Contact | None:
    return session.scalars(
        select(Contact).where(Contact.inbox_id == inbox_id, Contact.external_id == external_id)
    ).one_or_none()


def _add_token(session: Session, token_hash: str, contact: Contact, now: datetime) -> Visitor:
    """Adds a token to a contact that is stored."""
    expires_at, connection = now + timedelta(days=TOKEN_DAYS), session.connection()
    values = {"token_hash": token_hash, "contact_id": contact.id, "created_at": now, "last_seen_at": now}
    _NEW_TOKEN.run(connection, {**values, "expires_at": expires_at})
    ((owner,),) = _OWNER.rows(connection, {"inbox_id": contact.inbox_id})
    return Visitor(contact_view(contact), owner, expires_at)


def _move(session: Session, contact: Contact, known: Contact) -> None:
    """Makes all that an unproven contact has another's, and deletes it."""
    for table in (SupportCase, CaseAttachment):
        change_rows(session, update(table).where(table.contact_id == contact.id).values(contact_id=known.id))
    conversations = select(SupportCase.conversation_id).where(SupportCase.contact_id == known.id)
    written = (Message.author_id == contact.id, Message.conversation_id.in_(conversations))
    change_rows(session, update(Message).where(*written).values(author_id=known.id))
    cases = select(SupportCase.id).where(SupportCase.contact_id == known.id)
    acted = (CaseEvent.actor_kind == AuthorKind.CONTACT, CaseEvent.actor_id == contact.id, CaseEvent.case_id.in_(cases))
    change_rows(session, update(CaseEvent).where(*acted).values(actor_id=known.id))
    session.flush()
    change_rows(session, delete(Contact).where(Contact.id == contact.id))
    session.expunge(contact)


def _fill(contact: Contact, **values: str | None) -> None:
    for field, value in values.items():
        if value:
            setattr(contact, field, value)


def _seen(session: Session, token_hash: str, contact_id: str, now: datetime) -> None:
    before = now - timedelta(seconds=SEEN_SECONDS)
    of_token = (VisitorToken.token_hash == token_hash, VisitorToken.last_seen_at < before)
    if change_rows(session, update(VisitorToken).where(*of_token).values(last_seen_at=now)):
        change_rows(session, update(Contact).where(Contact.id == contact_id).values(last_seen_at=now))
