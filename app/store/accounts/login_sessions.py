"""Sign-in sessions. They are database rows: they survive restarts, and all processes share them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, bindparam, case, delete, select, update
from sqlalchemy.orm import Session

from app.domain.accounts import SessionView
from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.domain.roles import UserRole
from app.errors import NotFound
from app.store.db.database import Database
from app.store.db.models import Account, table_of
from app.store.db.prepared_statements import Prepared
from app.store.db.rows import change_rows
from app.store.db.sign_in_models import LoginSession
from app.store.desk.audit import add_event

MAX_SESSIONS = 100
"""Per user. Above it, the least recently used session ends."""
MAX_USER_AGENT = 200
MAX_ADDRESS = 45


@dataclass(frozen=True, slots=True)
class ActiveSession:
    """A valid session and its user."""

    id: str
    user_id: str
    role: UserRole
    last_seen_at: datetime


@dataclass(frozen=True, slots=True)
class ProvidedSession:
    """What a session keeps of the sign-in with a provider."""

    id_token: str | None  #: sealed; None if it was too long


class LoginSessions:
    """The repository of sessions.

    Args:
        days: a session expires after this many days without use.
    """

    def __init__(self, database: Database, days: int) -> None:
        self._database = database
        self._lifetime = timedelta(days=days)

    async def create(
        self,
        user_id: str,
        token_hash: str,
        *,
        user_agent: str,
        address: str,
        ends_at: datetime | None = None,
        id_token: str | None = None,
    ) -> str:
        """Signs a user in; returns the session's id.

        Args:
            ends_at: when the session ends however much it is used; None: use extends it without end.
            id_token: of the provider that the user has signed in with, sealed.
        """

        def work(session: Session) -> str:
            return self.add(
                session,
                user_id,
                token_hash,
                user_agent=user_agent,
                address=address,
                ends_at=ends_at,
                id_token=id_token,
            )

        return await self._database.write(work)

    def add(
        self,
        session: Session,
        user_id: str,
        token_hash: str,
        *,
        user_agent: str,
        address: str,
        ends_at: datetime | None = None,
        id_token: str | None = None,
    ) -> str:
        """As :meth:`create`, within a transaction."""
        now = datetime.now(UTC)
        expires_at = now + self._lifetime
        made = LoginSession(
            id=new_id(),
            user_id=user_id,
            token_hash=token_hash,
            created_at=now,
            last_seen_at=now,
            expires_at=min(expires_at, ends_at or expires_at),
            ends_at=ends_at,
            id_token=id_token,
            user_agent=user_agent[:MAX_USER_AGENT],
            address=address[:MAX_ADDRESS],
        )
        session.add(made)
        session.flush()
        surplus = (
            select(LoginSession.id)
            .where(LoginSession.user_id == user_id)
            .order_by(LoginSession.last_seen_at.desc(), LoginSession.id.desc())
            .offset(MAX_SESSIONS)
        )
        session.execute(
            delete(LoginSession)
            .where(LoginSession.id.in_(session.scalars(surplus).all()))
            .execution_options(synchronize_session=False)
        )
        session.execute(update(Account).where(Account.id == user_id).values(last_seen_at=now))
        add_event(session, user_id, AuditAction.SIGNED_IN, made.id, address=made.address)
        return made.id

    async def find(self, token_hash: str) -> ActiveSession | None:
        """The session with this token hash; None if there is none, it has expired, or its user is disabled."""
        rows = await self._database.read_statement(_KNOWN, {"token_hash": token_hash, "now": datetime.now(UTC)})
        for id, user_id, role, last_seen_at in rows:
            return ActiveSession(id, user_id, UserRole(role), last_seen_at)
        return None

    async def find_provided(self, user_id: str, id: str) -> ProvidedSession | None:
        """The provider's part of a session; None if the session is missing or did not begin at a provider."""
        wanted = select(LoginSession.id_token).where(
            LoginSession.id == id, LoginSession.user_id == user_id, LoginSession.ends_at.is_not(None)
        )

        def work(session: Session) -> ProvidedSession | None:
            row = session.execute(wanted).one_or_none()
            return ProvidedSession(row[0]) if row is not None else None

        return await self._database.read(work)

    async def find_valid(self, ids: Collection[str]) -> set[str]:
        """Which of these sessions are valid."""
        found = (
            select(LoginSession.id)
            .join(Account, Account.id == LoginSession.user_id)
            .where(LoginSession.id.in_(ids), *_is_valid())
        )
        return await self._database.read(lambda session: set(session.scalars(found)))

    async def touch(self, id: str, user_id: str) -> None:
        """Records that the session was used now and extends it."""
        now = datetime.now(UTC)

        def work(session: Session) -> None:
            seen = update(LoginSession).where(LoginSession.id == id, LoginSession.user_id == user_id)
            extended = now + self._lifetime
            expires_at = case((LoginSession.ends_at < extended, LoginSession.ends_at), else_=extended)
            session.execute(seen.values(last_seen_at=now, expires_at=expires_at))
            session.execute(update(Account).where(Account.id == user_id).values(last_seen_at=now))

        await self._database.write(work)

    async def list(self, user_id: str, current: str | None = None) -> Sequence[SessionView]:
        """The user's sessions, most recently used first. ``current`` is the id of the requesting session."""

        def work(session: Session) -> list[SessionView]:
            query = (
                select(LoginSession)
                .where(LoginSession.user_id == user_id, LoginSession.expires_at > datetime.now(UTC))
                .order_by(LoginSession.last_seen_at.desc(), LoginSession.id.desc())
            )
            return [
                SessionView(
                    one.id, one.created_at, one.last_seen_at, one.user_agent, one.address, current=one.id == current
                )
                for one in session.scalars(query)
            ]

        return await self._database.read(work)

    async def end(self, user_id: str, id: str, *, action: AuditAction, actor_id: str | None = None) -> None:
        """Ends one of a user's sessions.

        Raises:
            NotFound: the session is missing or another user's.
        """

        def work(session: Session) -> None:
            one = delete(LoginSession).where(LoginSession.id == id, LoginSession.user_id == user_id)
            if not change_rows(session, one):
                raise NotFound("There is no such session. It may have ended.")
            add_event(session, actor_id or user_id, action, id)

        await self._database.write(work)

    async def end_all(self, user_id: str, *, actor_id: str | None = None) -> int:
        """Signs a user out everywhere; returns the number of sessions ended."""

        def work(session: Session) -> int:
            ended = change_rows(session, delete(LoginSession).where(LoginSession.user_id == user_id))
            add_event(session, actor_id or user_id, AuditAction.SIGNED_OUT_EVERYWHERE, user_id, sessions=ended)
            return ended

        return await self._database.write(work)

    async def end_token(self, token_hash: str) -> None:
        """Ends the session of a token, if there is one: a new sign-in in the same browser replaces the session."""
        await self._database.write(
            lambda session: session.execute(delete(LoginSession).where(LoginSession.token_hash == token_hash))
        )

    async def purge(self) -> None:
        """Deletes expired sessions."""
        await self._database.write(
            lambda session: session.execute(delete(LoginSession).where(LoginSession.expires_at <= datetime.now(UTC)))
        )


def _is_valid() -> tuple[ColumnElement[bool], ...]:
    return LoginSession.expires_at > datetime.now(UTC), Account.disabled_at.is_(None)


_SESSION, _ACCOUNT = table_of(LoginSession), table_of(Account)
_KNOWN = Prepared(
    select(_SESSION.c.id, _SESSION.c.user_id, _ACCOUNT.c.role, _SESSION.c.last_seen_at)
    .join(_ACCOUNT, _ACCOUNT.c.id == _SESSION.c.user_id)
    .where(
        _SESSION.c.token_hash == bindparam("token_hash"),
        _SESSION.c.expires_at > bindparam("now"),
        _ACCOUNT.c.disabled_at.is_(None),
    )
)
