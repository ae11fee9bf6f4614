"""Creates, finds and changes accounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, delete, exists, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.accounts import AccountView, fold_name
from app.domain.audit import AuditAction
from app.domain.ids import LOCAL_USER_ID, new_id
from app.domain.roles import UserRole
from app.errors import Conflict, NotFound
from app.store.db.database import Database, is_postgres
from app.store.db.models import Account
from app.store.db.sign_in_models import ExternalIdentity, LoginSession
from app.store.desk.audit import add_event

LAST_ADMIN = "This is the last admin. Make another user an admin first."
NAME_TAKEN = "This name is taken. Choose another one."


@dataclass(frozen=True, slots=True)
class Credentials:
    """The data that a sign-in is checked against."""

    user_id: str
    password_hash: str | None
    disabled: bool


class AccountRecords:
    """The repository of accounts, except for the local user of a desk without accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def credentials(self, name: str) -> Credentials | None:
        """The credentials of the user with this name; None if there is none."""

        def work(session: Session) -> Credentials | None:
            account = session.scalar(select(Account).where(Account.name == fold_name(name), *_is_persons()))
            if account is None:
                return None
            return Credentials(account.id, account.password_hash, account.disabled_at is not None)

        return await self._database.read(work)

    async def id_of(self, name: str) -> str:
        """The id of the user with this name.

        Raises:
            NotFound: there is no such user.
        """
        known = await self.credentials(name)
        if known is None:
            raise NotFound(f"There is no user '{fold_name(name)}'. To list all users, run: deskmate user list")
        return known.user_id

    async def password_hash(self, user_id: str) -> str | None:
        """The hash of the user's password."""
        return await self._database.read(lambda session: _account(session, user_id).password_hash)

    async def get(self, user_id: str) -> AccountView:
        """Returns one account.

        Raises:
            NotFound: there is no such account.
        """
        return await self._database.read(lambda session: account_view(_account(session, user_id)))

    async def list(self) -> Sequence[AccountView]:
        """All accounts except the local user's and those of inboxes, by name."""
        query = select(Account).where(*_is_persons()).order_by(Account.name)
        return await self._database.read(lambda session: [account_view(one) for one in session.scalars(query)])

    async def has_admin(self) -> bool:
        """Whether there is an admin who can sign in."""
        return await self._database.read(lambda session: bool(admins(session)))

    async def create(
        self, name: str, display_name: str, role: UserRole, password_hash: str, *, actor_id: str | None = None
    ) -> AccountView:
        """Creates an account.

        Raises:
            Conflict: the name is taken.
        """

        def work(session: Session) -> AccountView:
            return add_account(session, name, display_name, role, password_hash, actor_id=actor_id)

        return await self._database.write(work)

    async def rename(self, user_id: str, display_name: str) -> None:
        """Changes the display name."""

        def work(session: Session) -> None:
            _account(session, user_id).display_name = display_name

        await self._database.write(work)

    async def set_password(self, user_id: str, password_hash: str, *, except_session: str | None = None) -> None:
        """Changes a password and ends the account's sessions, so that anyone who knew the old one is signed out.

        Args:
            except_session: the session to keep: the one in which the password was changed.
        """

        def work(session: Session) -> None:
            change_password(session, user_id, password_hash, except_session=except_session)
            add_event(session, user_id, AuditAction.PASSWORD_CHANGED, user_id)

        await self._database.write(work)

    async def store_rehashed(self, user_id: str, before: str, after: str) -> None:
        """Stores a rehash of the same password, with current parameters, unless the password was changed meanwhile."""

        def work(session: Session) -> None:
            account = _account(session, user_id)
            if account.password_hash == before:
                account.password_hash = after

        await self._database.write(work)

    async def set_role(self, user_id: str, role: UserRole, *, actor_id: str | None) -> None:
        """Changes a user's role.

        Raises:
            NotFound: there is no such account.
            Conflict: it is the last admin's.
        """

        def work(session: Session) -> None:
            there = admins(session, lock=True)
            account = _account(session, user_id)
            if account.role == role:
                return
            if there == [user_id] and role is not UserRole.ADMIN:
                raise Conflict(LAST_ADMIN)
            before, account.role = account.role, role.value
            add_event(session, actor_id, AuditAction.ROLE_CHANGED, user_id, before=before, role=role.value)

        await self._database.write(work)

    async def set_disabled(self, user_id: str, disabled: bool, *, actor_id: str | None) -> None:
        """Disables an account and ends its sessions, or enables it again.

        Raises:
            NotFound: there is no such account.
            Conflict: it is the last admin's.
        """

        def work(session: Session) -> None:
            there = admins(session, lock=True)
            account = _account(session, user_id)
            if (account.disabled_at is not None) is disabled:
                return
            if disabled and there == [user_id]:
                raise Conflict(LAST_ADMIN)
            account.disabled_at = datetime.now(UTC) if disabled else None
            if disabled:
                session.execute(delete(LoginSession).where(LoginSession.user_id == user_id))
            action = AuditAction.ACCOUNT_DISABLED if disabled else AuditAction.ACCOUNT_ENABLED
            add_event(session, actor_id, action, user_id)

        await self._database.write(work)


def add_account(
    session: Session, name: str, display_name: str, role: UserRole, password_hash: str | None, *, actor_id: str | None
) -> AccountView:
    """Creates an account within a transaction. Without a password, its user signs in with a provider only.

    Raises:
        Conflict: the name is taken.
    """
    account = Account(
        id=new_id(),
        name=name,
        display_name=display_name,
        role=role.value,
        password_hash=password_hash,
        created_at=datetime.now(UTC),
    )
    try:
        with session.begin_nested():
            session.add(account)
    except IntegrityError as error:
        raise Conflict(NAME_TAKEN) from error
    add_event(session, actor_id or account.id, AuditAction.ACCOUNT_CREATED, account.id, role=role.value)
    return account_view(account)


def change_password(
    session: Session, user_id: str, password_hash: str, *, except_session: str | None = None
) -> Account:
    """As :meth:`AccountRecords.set_password`, within a transaction."""
    account = _account(session, user_id)
    account.password_hash = password_hash
    ended = delete(LoginSession).where(LoginSession.user_id == user_id)
    if except_session is not None:
        ended = ended.where(LoginSession.id != except_session)
    session.execute(ended)
    return account


def account_view(account: Account) -> AccountView:
    """Converts a row to a view."""
    return AccountView(
        id=account.id,
        name=account.name,
        display_name=account.display_name or account.name,
        role=UserRole(account.role),
        created_at=account.created_at,
        disabled_at=account.disabled_at,
        last_seen_at=account.last_seen_at,
    )


def has_admin(session: Session) -> bool:
    """As :meth:`AccountRecords.has_admin`, within a transaction. Locks out concurrent creations of a first admin."""
    if is_postgres(session):  # there may be no admin's row to lock: the local user's row stands in
        session.execute(select(Account.id).where(Account.id == LOCAL_USER_ID).with_for_update())
    return bool(admins(session))


def admins(session: Session, *, lock: bool = False) -> list[str]:
    """Ids of the admins who can sign in, with a password or a provider."""
    connected = exists().where(ExternalIdentity.user_id == Account.id)
    can_sign_in = (
        or_(Account.password_hash.is_not(None), connected),
        Account.disabled_at.is_(None),
        *_is_persons(),
    )
    found = select(Account.id).where(Account.role == UserRole.ADMIN.value, *can_sign_in).order_by(Account.id)
    return list(session.scalars(found.with_for_update() if lock else found))


def _account(session: Session, user_id: str) -> Account:
    account = session.get(Account, user_id) if user_id != LOCAL_USER_ID else None
    if account is None or account.kind != "person":
        raise NotFound("There is no such account.")
    return account


def _is_persons() -> tuple[ColumnElement[bool], ...]:
    """Whether the account is one that a person may sign in with."""
    return Account.id != LOCAL_USER_ID, Account.kind == "person"
