"""Single-use links: to create an account, to create the first account, or to reset a password."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from app.domain.accounts import AccountView, LinkView, Purpose
from app.domain.audit import AuditAction
from app.domain.ids import LOCAL_USER_ID, new_id
from app.domain.roles import UserRole
from app.errors import Conflict, LimitReached, NotFound
from app.store.accounts.accounts import account_view, add_account, change_password, has_admin
from app.store.accounts.local_history import take_over
from app.store.db.database import Database
from app.store.db.models import Account, Conversation
from app.store.db.rows import change_rows
from app.store.db.sign_in_models import Invitation
from app.store.desk.audit import add_event

MAX_INVITATIONS = 500
"""Open invitations of all admins together. The page lists them all."""
NO_SUCH_LINK = "This link does not work. It was used already, has expired, or was revoked. Ask for a new one."
HAS_ADMIN = "There is an admin already. Ask for an invitation, or sign in."


@dataclass(frozen=True, slots=True)
class Link:
    """What a link's visitor sees before using it."""

    purpose: Purpose
    role: UserRole
    name: str | None  #: of the account whose password it resets
    local_conversations: int  #: conversations that the first admin may take over


class Invitations:
    """The repository of links."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def invite(
        self, token_hash: str, role: UserRole, *, actor_id: str, lifetime: timedelta, note: str | None = None
    ) -> LinkView:
        """Creates an invitation to create an account.

        Raises:
            LimitReached: there are ``MAX_INVITATIONS`` open invitations.
        """

        def work(session: Session) -> LinkView:
            unused = select(func.count()).select_from(Invitation)
            number = session.scalar(unused.where(Invitation.purpose == Purpose.INVITATION.value, *_usable())) or 0
            if number >= MAX_INVITATIONS:
                raise LimitReached(
                    f"There are {number:,} open invitations, and {MAX_INVITATIONS:,} is the most. Revoke some that "
                    "are no longer needed."
                )
            made = _add(session, Purpose.INVITATION, token_hash, role, lifetime, created_by=actor_id, note=note)
            add_event(session, actor_id, AuditAction.INVITED, made.id, role=role.value)
            return _view(made)

        return await self._database.write(work)

    async def let_reset(self, token_hash: str, user_id: str, *, actor_id: str | None, lifetime: timedelta) -> None:
        """Creates a password reset link. An earlier, unused link for the same account ends.

        Raises:
            NotFound: there is no such account.
        """

        def work(session: Session) -> None:
            account = session.get(Account, user_id) if user_id != LOCAL_USER_ID else None
            if account is None or account.kind != "person":
                raise NotFound("There is no such account.")
            session.execute(delete(Invitation).where(Invitation.user_id == user_id, Invitation.used_at.is_(None)))
            _add(
                session,
                Purpose.RESET,
                token_hash,
                UserRole(account.role),
                lifetime,
                created_by=actor_id,
                user_id=user_id,
            )
            add_event(session, actor_id, AuditAction.RESET_LINK_MADE, user_id)

        await self._database.write(work)

    async def let_set_up(self, token_hash: str, *, lifetime: timedelta) -> bool:
        """Creates a link to create the first admin; False if there is an admin."""

        def work(session: Session) -> bool:
            if has_admin(session):
                return False
            _add(session, Purpose.SETUP, token_hash, UserRole.ADMIN, lifetime)
            return True

        return await self._database.write(work)

    async def open(self) -> Sequence[LinkView]:
        """The open invitations, newest first."""
        still = (
            select(Invitation)
            .where(Invitation.purpose == Purpose.INVITATION.value, *_usable())
            .order_by(Invitation.id.desc())
        )
        return await self._database.read(lambda session: [_view(one) for one in session.scalars(still)])

    async def take_back(self, id: str, *, actor_id: str) -> None:
        """Revokes an invitation.

        Raises:
            NotFound: there is no such invitation, or it was used.
        """

        def work(session: Session) -> None:
            unused = delete(Invitation).where(
                Invitation.id == id, Invitation.purpose == Purpose.INVITATION.value, Invitation.used_at.is_(None)
            )
            if not change_rows(session, unused):
                raise NotFound("There is no such invitation. It may have been used.")
            add_event(session, actor_id, AuditAction.INVITATION_REVOKED, id)

        await self._database.write(work)

    async def look(self, token_hash: str) -> Link:
        """Returns what a link is for.

        Raises:
            NotFound: the link is not valid (any more).
            Conflict: it is for the first admin, and there is an admin.
        """

        def work(session: Session) -> Link:
            link = _usable_link(session, token_hash)
            account = session.get(Account, link.user_id) if link.user_id else None
            setup = link.purpose == Purpose.SETUP.value
            return Link(
                purpose=Purpose(link.purpose),
                role=UserRole(link.role),
                name=account.name if account else None,
                local_conversations=_local_conversations(session) if setup else 0,
            )

        return await self._database.read(work)

    async def use(
        self, token_hash: str, password_hash: str, *, name: str | None, display_name: str | None, with_history: bool
    ) -> AccountView:
        """Uses the link, once: of two concurrent uses only one succeeds.

        Args:
            name, display_name: of the new account; ignored for a password reset, whose account the link names.
            with_history: the first admin takes over the local user's conversations.

        Raises:
            NotFound: the link is not valid (any more).
            Conflict: the name is taken, or there is an admin already.
        """

        def work(session: Session) -> AccountView:
            link = _usable_link(session, token_hash)
            unused = update(Invitation).where(Invitation.id == link.id, Invitation.used_at.is_(None))
            if not change_rows(session, unused.values(used_at=datetime.now(UTC))):
                raise NotFound(NO_SUCH_LINK)
            if link.user_id is not None:
                account = change_password(session, link.user_id, password_hash)
                add_event(session, account.id, AuditAction.PASSWORD_RESET, account.id)
                return account_view(account)
            assert name is not None
            person = add_account(
                session, name, display_name or name, UserRole(link.role), password_hash, actor_id=link.created_by
            )
            if link.purpose == Purpose.SETUP.value and with_history:
                take_over(session, person.id)
            return person

        return await self._database.write(work)

    async def local_conversations(self) -> int:
        """How many conversations the local user has, from before accounts were enabled."""
        return await self._database.read(_local_conversations)

    async def take_over(self, user_id: str) -> int:
        """Gives the local user's conversations to a user; returns how many."""
        return await self._database.write(lambda session: take_over(session, user_id))


def _local_conversations(session: Session) -> int:
    query = (
        select(func.count())
        .select_from(Conversation)
        .where(Conversation.user_id == LOCAL_USER_ID, Conversation.deletion.is_(None))
    )
    return session.scalar(query) or 0


def _usable() -> tuple[ColumnElement[bool], ...]:
    return Invitation.used_at.is_(None), Invitation.expires_at > datetime.now(UTC)


def _usable_link(session: Session, token_hash: str) -> Invitation:
    link = session.scalar(select(Invitation).where(Invitation.token_hash == token_hash, *_usable()))
    if link is None:
        raise NotFound(NO_SUCH_LINK)
    if link.purpose == Purpose.SETUP.value and has_admin(session):
        raise Conflict(HAS_ADMIN)
    return link


def _add(
    session: Session,
    purpose: Purpose,
    token_hash: str,
    role: UserRole,
    lifetime: timedelta,
    *,
    created_by: str | None = None,
    user_id: str | None = None,
    note: str | None = None,
) -> Invitation:
    now = datetime.now(UTC)
    made = Invitation(
        id=new_id(),
        purpose=purpose.value,
        token_hash=token_hash,
        role=role.value,
        user_id=user_id,
        note=note,
        created_by=created_by,
        created_at=now,
        expires_at=now + lifetime,
    )
    session.add(made)
    return made


def _view(link: Invitation) -> LinkView:
    return LinkView(link.id, Purpose(link.purpose), UserRole(link.role), link.note, link.created_at, link.expires_at)
