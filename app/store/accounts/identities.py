"""Finds, creates and connects the accounts of users who sign in with a provider."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.roles import UserRole
from app.errors import Conflict, NotFound
from app.store.accounts.accounts import add_account, admins
from app.store.db.database import Database
from app.store.db.models import Account
from app.store.db.rows import change_rows
from app.store.db.sign_in_models import ExternalIdentity, LoginSession
from app.store.desk.audit import add_event

CONNECTED = "This identity is connected to another account, or this account to another identity. Disconnect that first."

OWN_ONLY_WAY_IN = "This account has no password. Ask an admin for a reset link, set one, and try again."
ONLY_WAY_IN = (
    "This account has no password, so its user could not sign in any more. Give them a reset link; once they have set "
    "a password, try again. To keep them out now, disable the account."
)


class Refusal(StrEnum):
    """Why a user whom the provider knows may not sign in."""

    NO_ROLE = "no_role"
    DISABLED = "disabled"
    NAME_TAKEN = "name_taken"


@dataclass(frozen=True, slots=True)
class ProvidedUser:
    """A user as the provider describes them. Only ``issuer`` and ``subject`` identify them."""

    issuer: str
    subject: str
    name: str  #: a valid username, for a new account
    display_name: str | None
    label: str
    role: UserRole | None  #: None: no group of theirs may sign in


@dataclass(frozen=True, slots=True)
class LinkedIdentity:
    """The provider's user who signs in to an account."""

    subject: str
    label: str  #: what they know it by
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result of :meth:`Identities.resolve`: the account, or why there is none to sign in to."""

    user_id: str | None = None
    refusal: Refusal | None = None
    changed: bool = False  #: a role has changed, or sessions have ended
    kept_admin: bool = False  #: the last admin keeps the role, which the groups would have changed


class Identities:
    """The repository of identities at providers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def resolve(self, user: ProvidedUser) -> Resolution:
        """Finds the account of a provider's user, or creates it, and gives it the role of their groups.

        An account is found by issuer and subject alone. A new user whose name an account has already is refused: that
        account may be another person's. A user without a role also loses the sessions that began at the provider.
        """

        def work(session: Session) -> Resolution:
            there = admins(session, lock=True)  # before the account, as all who change roles do
            identity = _identity(session, user)
            if identity is None:
                if user.role is None:
                    return Resolution(refusal=Refusal.NO_ROLE)
                created = _create(session, user, user.role)
                if created is not None:
                    return Resolution(created)
                identity = _identity(session, user)  # created at the same moment, by another request
                if identity is None:
                    return Resolution(refusal=Refusal.NAME_TAKEN)
            return _admit(session, identity, user, there)

        return await self._database.write(work)

    async def of(self, user_id: str, issuer: str) -> LinkedIdentity | None:
        """The account's identity at a provider; None if there is none."""
        wanted = select(ExternalIdentity).where(ExternalIdentity.user_id == user_id, ExternalIdentity.issuer == issuer)

        def work(session: Session) -> LinkedIdentity | None:
            row = session.scalars(wanted).one_or_none()
            return LinkedIdentity(row.subject, row.label, row.created_at) if row is not None else None

        return await self._database.read(work)

    async def connect(self, user_id: str, issuer: str, subject: str, label: str, *, actor_id: str | None) -> None:
        """Lets the provider's user sign in to an existing account.

        Raises:
            NotFound: there is no such account.
            Conflict: the identity belongs to another account, or the account has another identity.
        """

        def work(session: Session) -> None:
            if session.get(Account, user_id) is None:
                raise NotFound("There is no such account.")
            present = session.get(ExternalIdentity, (issuer, subject))
            if present is not None and present.user_id == user_id:
                return
            if present is not None:
                raise Conflict(CONNECTED)
            made = ExternalIdentity(
                issuer=issuer, subject=subject, user_id=user_id, label=label, created_at=datetime.now(UTC)
            )
            try:
                with session.begin_nested():
                    session.add(made)
            except IntegrityError as error:
                raise Conflict(CONNECTED) from error
            add_event(session, actor_id, AuditAction.IDENTITY_CONNECTED, user_id)

        await self._database.write(work)

    async def disconnect(self, user_id: str, issuer: str, *, actor_id: str | None) -> None:
        """Lets the provider's user no longer sign in to the account, and ends the sessions that began there.

        Raises:
            NotFound: the account is not connected.
            Conflict: it has no password, so its user could not sign in any more.
        """

        def work(session: Session) -> None:
            account = session.get(Account, user_id)
            gone = delete(ExternalIdentity).where(
                ExternalIdentity.user_id == user_id, ExternalIdentity.issuer == issuer
            )
            if account is None or not change_rows(session, gone):
                raise NotFound("This account is not connected.")
            if account.password_hash is None:
                raise Conflict(OWN_ONLY_WAY_IN if actor_id == user_id else ONLY_WAY_IN)
            _end_provided(session, user_id)
            add_event(session, actor_id, AuditAction.IDENTITY_DISCONNECTED, user_id)

        await self._database.write(work)


def _identity(session: Session, user: ProvidedUser) -> ExternalIdentity | None:
    return session.get(ExternalIdentity, (user.issuer, user.subject))


def _create(session: Session, user: ProvidedUser, role: UserRole) -> str | None:
    """Creates the account of a new user and returns its id; None if its name, or the identity, is there already."""
    try:
        with session.begin_nested():
            made = add_account(session, user.name, user.display_name or user.name, role, None, actor_id=None)
            session.add(
                ExternalIdentity(
                    issuer=user.issuer,
                    subject=user.subject,
                    user_id=made.id,
                    label=user.label,
                    created_at=datetime.now(UTC),
                )
            )
    except (Conflict, IntegrityError):
        return None
    return made.id


def _admit(session: Session, identity: ExternalIdentity, user: ProvidedUser, there: list[str]) -> Resolution:
    account = session.get_one(Account, identity.user_id, with_for_update=True)
    identity.label = user.label
    if account.disabled_at is not None:
        return Resolution(account.id, Refusal.DISABLED)
    if user.role is None:
        return Resolution(account.id, Refusal.NO_ROLE, changed=_end_provided(session, account.id) > 0)
    if account.role == user.role:
        return Resolution(account.id)
    if there == [account.id]:
        return Resolution(account.id, kept_admin=True)
    before, account.role = account.role, user.role.value
    add_event(session, None, AuditAction.ROLE_CHANGED, account.id, before=before, role=account.role, by="provider")
    return Resolution(account.id, changed=True)


def _end_provided(session: Session, user_id: str) -> int:
    began_there = delete(LoginSession).where(LoginSession.user_id == user_id, LoginSession.ends_at.is_not(None))
    return change_rows(session, began_there)
