"""Creates, lists, revokes and looks up API keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.domain.accounts import KeyView, Scope
from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.domain.roles import UserRole
from app.errors import Conflict, NotFound
from app.store.db.database import Database
from app.store.db.models import Account
from app.store.db.rows import change_rows
from app.store.db.sign_in_models import ApiKey
from app.store.desk.audit import add_event

MAX_KEYS = 50


@dataclass(frozen=True, slots=True)
class ActiveKey:
    """A valid key, its owner, and its scopes."""

    id: str
    user_id: str
    role: UserRole
    scopes: frozenset[str]
    last_used_at: datetime | None


class ApiKeys:
    """The repository of API keys. Every query takes the user's id, except for looking up a key."""

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
        """Creates a key.

        Raises:
            Conflict: the user has ``MAX_KEYS`` keys already.
        """

        def work(session: Session) -> KeyView:
            # Concurrent creations wait for each other, so that each counts the keys of those before.
            session.execute(select(Account.id).where(Account.id == user_id).with_for_update(key_share=True)).one()
            held = select(func.count()).select_from(ApiKey).where(ApiKey.user_id == user_id)
            if (session.scalar(held) or 0) >= MAX_KEYS:
                raise Conflict(f"You have {MAX_KEYS} keys. Revoke one that is no longer used first.")
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
        """The user's keys, newest first, including expired ones."""
        query = select(ApiKey).where(ApiKey.user_id == user_id).order_by(ApiKey.id.desc())
        return await self._database.read(lambda session: [_view(one) for one in session.scalars(query)])

    async def revoke(self, user_id: str, id: str) -> None:
        """Revokes a key.

        Raises:
            NotFound: the key is missing or another user's.
        """

        def work(session: Session) -> None:
            if not change_rows(session, delete(ApiKey).where(ApiKey.id == id, ApiKey.user_id == user_id)):
                raise NotFound("There is no such key. It may have been revoked.")
            add_event(session, user_id, AuditAction.API_KEY_REVOKED, id)

        await self._database.write(work)

    async def find(self, token_hash: str) -> ActiveKey | None:
        """The key with this token hash; None if there is none, it has expired, or its user is disabled."""

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
        """Which of these keys are valid."""
        found = select(ApiKey.id).join(Account, Account.id == ApiKey.user_id).where(ApiKey.id.in_(ids), *_is_valid())
        return await self._database.read(lambda session: set(session.scalars(found)))

    async def touch(self, id: str, user_id: str) -> None:
        """Records that the key was used now."""
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
