"""Inboxes and their members. Admins change them; a user sees those that they are a member of."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, select, true, update
from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.case_views import InboxView, NamedUser
from app.domain.ids import new_id
from app.domain.roles import UserRole
from app.errors import NotFound
from app.store.cases.access import NO_INBOX, administered_inbox, may_read, require_admin
from app.store.cases.outbox import forget_deliveries
from app.store.db.case_models import Inbox, InboxMember, SupportCase
from app.store.db.database import Database
from app.store.db.knowledge_models import Collection, CollectionMember
from app.store.db.models import Account, Conversation
from app.store.db.prepared_statements import PlainRows, Prepared
from app.store.db.rows import change_rows, is_id, shown_name
from app.store.desk.audit import add_event

BATCH = 50  # conversations per transaction, when an inbox is deleted
PREVIOUS_SECRET_HOURS = 24
_TOKEN_BYTES = 18
_SECRET_BYTES = 32

INBOX = PlainRows(Inbox, "id user_id name kind token allowed_origins time_zone opening_hours greeting collections bot")
# Each visitor's request asks one of these.
_BY_TOKEN = Prepared(select(*INBOX.columns).where(Inbox.token == bindparam("token")))
_BY_ID = Prepared(select(*INBOX.columns).where(Inbox.id == bindparam("id")))


class Inboxes:
    """The repository of inboxes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, user_id: str) -> list[InboxView]:
        """The inboxes whose cases the user may read, by name."""
        return await self._database.read(lambda session: inbox_views(session, may_read(user_id, Inbox.id)))

    async def get(self, user_id: str, inbox_id: str) -> InboxView:
        """One inbox whose cases the user may read.

        Raises:
            NotFound: it is missing, or the user is no member.
        """
        return await self._database.read(lambda session: _one(session, inbox_id, may_read(user_id, Inbox.id)))

    async def by_token(self, token: str) -> InboxView | None:
        """The inbox with this public token, for its widget, without its members; None if there is none."""

        return await self._view(_BY_TOKEN, {"token": token})

    async def view(self, inbox_id: str) -> InboxView | None:
        """The inbox of a contact or of a case that the caller has read already, without its members; None if it was
        deleted."""

        return await self._view(_BY_ID, {"id": inbox_id})

    async def _view(self, statement: Prepared, given: Mapping[str, str]) -> InboxView | None:
        row = await self._database.read_rows(lambda connection: statement.row(connection, given))
        return inbox_view(INBOX.read(row)) if row is not None else None

    async def identity_keys(self, inbox_id: str) -> list[str]:
        """The keys that may have signed a contact's identity: today's, and the one before for a day."""

        def work(session: Session) -> list[str]:
            inbox = session.get(Inbox, inbox_id)
            if inbox is None:
                return []
            keys = [inbox.secret]
            until = inbox.previous_secret_until
            if inbox.previous_secret is not None and until is not None and until > datetime.now(UTC):
                keys.append(inbox.previous_secret)
            return keys

        return await self._database.read(work)

    async def create(
        self,
        user_id: str,
        *,
        name: str,
        kind: str = "widget",
        allowed_origins: Sequence[str] = (),
        time_zone: str = "UTC",
        opening_hours: Sequence[Mapping[str, Any]] = (),
        greeting: str = "",
        collections: Sequence[str] = (),
        bot: bool = True,
    ) -> InboxView:
        """Creates an inbox with the account that owns its conversations. Its values have been checked.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: one of the collections is missing.
        """

        def work(session: Session) -> InboxView:
            require_admin(session, user_id)
            now = datetime.now(UTC)
            inbox_id, account_id = new_id(), new_id()
            # The name of an account is no valid one to sign in with, and there is no password.
            session.add(
                Account(
                    id=account_id,
                    name=f"inbox {inbox_id}",
                    display_name=name,
                    role=UserRole.AGENT,
                    kind="inbox",
                    created_at=now,
                )
            )
            session.flush()
            inbox = Inbox(
                id=inbox_id,
                user_id=account_id,
                name=name,
                kind=kind,
                token=secrets.token_urlsafe(_TOKEN_BYTES),
                secret=secrets.token_urlsafe(_SECRET_BYTES),
                allowed_origins=list(allowed_origins),
                time_zone=time_zone,
                opening_hours=[dict(hours) for hours in opening_hours],
                greeting=greeting,
                collections=[],
                bot=bot,
                created_at=now,
            )
            session.add(inbox)
            session.flush()
            _set_collections(session, inbox, collections)
            add_event(session, user_id, AuditAction.INBOX_CREATED, inbox_id, kind=kind)
            session.flush()
            return _one(session, inbox_id, true())

        return await self._database.write(work)

    async def change(self, user_id: str, inbox_id: str, **values: Any) -> InboxView:
        """Changes the given fields, which have been checked: those of :meth:`create` but the kind.

        Raises:
            NotFound: it, or one of the collections, is missing, or the user is no member.
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> InboxView:
            inbox = administered_inbox(session, user_id, inbox_id)
            for field, value in values.items():
                if field == "collections":
                    _set_collections(session, inbox, value)
                else:
                    setattr(inbox, field, value)
            if "name" in values:
                session.execute(update(Account).where(Account.id == inbox.user_id).values(display_name=values["name"]))
            add_event(session, user_id, AuditAction.INBOX_CHANGED, inbox_id, fields=" ".join(sorted(values)))
            session.flush()
            return _one(session, inbox_id, true())

        return await self._database.write(work)

    async def new_secret(self, user_id: str, inbox_id: str) -> str:
        """Replaces the key that signs identities and returns it. The one before holds for a day.

        Raises:
            NotFound: the inbox is missing, or the user is no member.
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> str:
            inbox = administered_inbox(session, user_id, inbox_id)
            inbox.previous_secret = inbox.secret
            inbox.previous_secret_until = datetime.now(UTC) + timedelta(hours=PREVIOUS_SECRET_HOURS)
            inbox.secret = secrets.token_urlsafe(_SECRET_BYTES)
            add_event(session, user_id, AuditAction.INBOX_SECRET_CHANGED, inbox_id)
            return inbox.secret

        return await self._database.write(work)

    async def delete(self, user_id: str, inbox_id: str) -> None:
        """Deletes the inbox with its contacts, cases and conversations.

        Raises:
            NotFound: it is missing, or the user is no member.
            NotAllowed: the user is no admin.
        """

        def some(session: Session) -> int:
            inbox = administered_inbox(session, user_id, inbox_id)
            conversations = select(Conversation.id).where(Conversation.user_id == inbox.user_id).limit(BATCH)
            ids = session.scalars(conversations).all()  # those of the cases, too
            forget_deliveries(session, ids)
            return change_rows(session, delete(Conversation).where(Conversation.id.in_(ids)))

        def rest(session: Session) -> None:
            inbox = administered_inbox(session, user_id, inbox_id)
            forget_deliveries(
                session, session.scalars(select(SupportCase.id).where(SupportCase.inbox_id == inbox_id)).all()
            )
            session.execute(delete(Account).where(Account.id == inbox.user_id))
            add_event(session, user_id, AuditAction.INBOX_DELETED, inbox_id)

        while await self._database.write(some) == BATCH:
            pass
        await self._database.write(rest)

    async def add_member(self, user_id: str, inbox_id: str, member_id: str) -> None:
        """Lets a user work with the inbox's cases, or, as a viewer, read them.

        Raises:
            NotFound: the inbox or the account is missing, or the user is no member.
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> None:
            administered_inbox(session, user_id, inbox_id)
            account = session.get(Account, member_id) if is_id(member_id) else None
            if account is None or account.kind != "person":
                raise NotFound("There is no such account.")
            session.merge(InboxMember(inbox_id=inbox_id, user_id=member_id))
            add_event(session, user_id, AuditAction.INBOX_MEMBER_ADDED, inbox_id, user_id=member_id)

        await self._database.write(work)

    async def remove_member(self, user_id: str, inbox_id: str, member_id: str) -> None:
        """Takes a member's right away. The cases assigned to them are assigned to none.

        Raises:
            NotFound: the inbox is missing, the user is no member, or the inbox has no such member.
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> None:
            administered_inbox(session, user_id, inbox_id)
            is_member = (InboxMember.inbox_id == inbox_id) & (InboxMember.user_id == member_id)
            if not is_id(member_id) or not change_rows(session, delete(InboxMember).where(is_member)):
                raise NotFound("This inbox has no such member.")
            assigned = (SupportCase.inbox_id == inbox_id) & (SupportCase.assignee_id == member_id)
            change_rows(
                session,
                update(SupportCase)
                .where(assigned)
                .values(assignee_id=None, epoch=SupportCase.epoch + 1, revision=SupportCase.revision + 1),
            )
            add_event(session, user_id, AuditAction.INBOX_MEMBER_REMOVED, inbox_id, user_id=member_id)

        await self._database.write(work)


def inbox_views(session: Session, *which: ColumnElement[bool]) -> list[InboxView]:
    """The inboxes that satisfy all conditions, by name."""
    rows = session.scalars(select(Inbox).where(*which).order_by(Inbox.name, Inbox.id)).all()
    members: dict[str, list[NamedUser]] = {}
    found = session.execute(
        select(InboxMember.inbox_id, Account.id, shown_name(Account).label("name"))
        .join(Account, Account.id == InboxMember.user_id)
        .where(InboxMember.inbox_id.in_([row.id for row in rows]))
        .order_by("name", Account.id)
    )
    for inbox_id, id, name in found:
        members.setdefault(inbox_id, []).append(NamedUser(id, name))
    return [inbox_view(row, members.get(row.id, ())) for row in rows]


def inbox_view(row: Inbox, members: Sequence[NamedUser] = ()) -> InboxView:
    """The view of an inbox; without its members where none is asked for, such as for a visitor."""
    return InboxView(
        id=row.id,
        user_id=row.user_id,
        name=row.name,
        kind=row.kind,
        token=row.token,
        allowed_origins=tuple(row.allowed_origins),
        time_zone=row.time_zone,
        opening_hours=tuple(row.opening_hours),
        greeting=row.greeting,
        collections=tuple(row.collections),
        bot=row.bot,
        members=tuple(members),
    )


def _one(session: Session, inbox_id: str, right: ColumnElement[bool]) -> InboxView:
    found = inbox_views(session, Inbox.id == inbox_id, right) if is_id(inbox_id) else []
    if not found:
        raise NotFound(NO_INBOX)
    return found[0]


def _set_collections(session: Session, inbox: Inbox, collection_ids: Sequence[str]) -> None:
    """Lets the inbox's account search these collections: the rights of the knowledge base hold for the bot as well."""
    wanted = list(dict.fromkeys(collection_ids))
    known = set(session.scalars(select(Collection.id).where(Collection.id.in_(wanted))))
    for id in wanted:
        if id not in known:
            raise NotFound("There is no such collection. It may have been deleted. Choose others.")
    session.execute(delete(CollectionMember).where(CollectionMember.user_id == inbox.user_id))
    session.add_all(CollectionMember(collection_id=id, user_id=inbox.user_id, may_edit=False) for id in wanted)
    inbox.collections = wanted
