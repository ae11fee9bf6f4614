"""API keys: made, listed, found again by what is stored of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, CursorResult, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.domain.accounts import KeyView, Scope
from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.domain.roles import UserRole
from app.errors import Conflict, NotFound
from app.store.db.database import Database
from app.store.db.models import Account, ApiKey
from app.store.desk.audit import add_event

MAX_KEYS = 50


@dataclass(frozen=True, slots=True)
class ActiveKey:
    """A key that holds, whose it is, and what it opens."""

    id: str
    user_id: str
    role: UserRole
    scopes: frozenset[str]
    last_used_at: datetime | None


class ApiKeys:
    """The repository of keys. Each query asks for the user's id, but that which finds out whose a key is."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        user_id: str,
        token_hash: str,
        *,
        name: str,
        beginning: str,
        scopes: Collection[Scope],
        expires_at: datetime | None,
    ) -> KeyView:
        """Raises:
        Conflict: they have as many as anybody may.
        """

        def work(session: Session) -> KeyView:
            # Several at once wait for each other, so that each finds what the one before has made.
            session.execute(select(Account.id).where(Account.id == user_id).with_for_update(key_share=True)).one()
            held = select(func.count()).select_from(ApiKey).where(ApiKey.user_id == user_id)
            if (session.scalar(held) or 0) >= MAX_KEYS:
                raise Conflict(f"You have {MAX_KEYS} keys. Revoke one that is not used any more first.")
            made = ApiKey(
                id=new_id(),
                user_id=user_id,
                name=name,
                token_hash=token_hash,
                beginning=beginning,
                scopes=" ".join(sorted(scopes)),
                created_at=datetime.now(UTC),
                expires_at=expires_at,
            )
            session.add(made)
            add_event(session, user_id, AuditAction.API_KEY_CREATED, made.id, scopes=made.scopes)
            return _view(made)

        return await self._database.write(work)

    async def list(self, user_id: str) -> Sequence[KeyView]:
        """Somebody's keys, the newest first; those that have expired too."""
        theirs = select(ApiKey).where(ApiKey.user_id == user_id).order_by(ApiKey.id.desc())
        return await self._database.read(lambda session: [_view(one) for one in session.scalars(theirs)])

    async def revoke(self, user_id: str, id: str) -> None:
        """Raises:
        NotFound: there is no such key, or it is another's.
        """

        def work(session: Session) -> None:
            gone = session.execute(delete(ApiKey).where(ApiKey.id == id, ApiKey.user_id == user_id))
            assert isinstance(gone, CursorResult)
            if not gone.rowcount:
                raise NotFound("There is no such key. It may have been revoked.")
            add_event(session, user_id, AuditAction.API_KEY_REVOKED, id)

        await self._database.write(work)

    async def find(self, token_hash: str) -> ActiveKey | None:
        """The key of a token; None where there is none, it has expired, or its person may not come in any more."""

        def work(session: Session) -> ActiveKey | None:
            row = session.execute(
                select(ApiKey.id, ApiKey.user_id, Account.role, ApiKey.scopes, ApiKey.last_used_at)
                .join(Account, Account.id == ApiKey.user_id)
                .where(ApiKey.token_hash == token_hash, *_is_valid())
            ).first()
            if row is None:
                return None
            return ActiveKey(row.id, row.user_id, UserRole(row.role), frozenset(row.scopes.split()), row.last_used_at)

        return await self._database.read(work)

    async def find_valid(self, ids: Collection[str]) -> set[str]:
        """Which of these keys hold."""
        found = select(ApiKey.id).join(Account, Account.id == ApiKey.user_id).where(ApiKey.id.in_(ids), *_is_valid())
        return await self._database.read(lambda session: set(session.scalars(found)))

    async def touch(self, id: str, user_id: str) -> None:
        """It was used now."""
        used = update(ApiKey).where(ApiKey.id == id, ApiKey.user_id == user_id).values(last_used_at=datetime.now(UTC))
        await self._database.write(lambda session: session.execute(used))


def _is_valid() -> tuple[ColumnElement[bool], ...]:
    return or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > datetime.now(UTC)), Account.disabled_at.is_(None)


def _view(key: ApiKey) -> KeyView:
    return KeyView(
        key.id,
        key.name,
        key.beginning,
        tuple(Scope(scope) for scope in key.scopes.split()),
        key.created_at,
        key.expires_at,
        key.last_used_at,
    )
