"""Reads the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, aliased

from app.domain.audit import AuditAction
from app.domain.ids import first_id_of
from app.domain.usage import Span
from app.domain.views import Page
from app.errors import InvalidInput
from app.store.db.case_models import Inbox, Webhook
from app.store.db.database import Database
from app.store.db.knowledge_models import Collection, Document
from app.store.db.models import Account, AuditEvent
from app.store.db.rows import is_id, shown_name

MAX_PAGE = 500


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One audit entry."""

    id: str
    at: datetime
    actor: str | None  #: a name, or the id of a deleted user; None if no user was signed in
    action: str
    target: str | None  #: the object acted on: a name or an id
    details: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    """What the ids of target and details are called now. Those of what was deleted are missing."""


class AuditLog:
    """The repository of audit entries, read by admins."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self,
        span: Span,
        *,
        action: AuditAction | None = None,
        actor: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[AuditEntry]:
        """The entries of a time span, latest first.

        Args:
            actor: part of the actor's name.
            cursor: the previous page's ``next_cursor``.

        Raises:
            InvalidInput: the limit or the cursor is not valid.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"limit is {limit}; it must be between 1 and {MAX_PAGE}.")
        if cursor is not None and not is_id(cursor):
            raise InvalidInput("This cursor is not valid. Start again without one.")
        target = aliased(Account)
        query = (
            select(AuditEvent, shown_name(Account), shown_name(target))
            .outerjoin(Account, Account.id == AuditEvent.actor_id)
            .outerjoin(target, target.id == AuditEvent.target)
            .where(AuditEvent.id >= first_id_of(span.begins), AuditEvent.id < first_id_of(span.ends))
            .order_by(AuditEvent.id.desc())
            .limit(limit + 1)
        )
        if action is not None:
            query = query.where(AuditEvent.action == action)
        if actor:
            part = actor.lower()
            query = query.where(
                or_(
                    func.lower(Account.name).contains(part, autoescape=True),
                    func.lower(Account.display_name).contains(part, autoescape=True),
                )
            )
        if cursor is not None:
            query = query.where(AuditEvent.id < cursor)

        def work(session: Session) -> Page[AuditEntry]:
            rows = session.execute(query).all()
            names = _names(session, {id for event, _, _ in rows[:limit] for id in _ids(event)})
            entries = tuple(
                AuditEntry(
                    event.id,
                    event.at,
                    name or event.actor_id,
                    event.action,
                    on or event.target,
                    event.details,
                    {id: names[id] for id in _ids(event) if id in names},
                )
                for event, name, on in rows[:limit]
            )
            return Page(entries, entries[-1].id if len(rows) > limit else None)

        return await self._database.read(work)

    async def all(
        self, span: Span, *, action: AuditAction | None = None, actor: str | None = None
    ) -> AsyncIterator[AuditEntry]:
        """As :meth:`list`, without pages."""
        cursor: str | None = None
        while True:
            page = await self.list(span, action=action, actor=actor, limit=MAX_PAGE, cursor=cursor)
            for entry in page.items:
                yield entry
            if (cursor := page.next_cursor) is None:
                return


def _ids(event: AuditEvent) -> list[str]:
    return [value for value in (event.target, *event.details.values()) if isinstance(value, str) and is_id(value)]


def _names(session: Session, ids: set[str]) -> dict[str, str]:
    """The names of the users, inboxes, webhooks, collections and documents among these ids."""
    found: dict[str, str] = {}
    for id, name in (
        (Account.id, shown_name(Account)),
        (Inbox.id, Inbox.name),
        (Collection.id, Collection.name),
        (Document.id, Document.title),
    ):
        found |= dict(session.execute(select(id, name).where(id.in_(ids))).tuples().all())
    for webhook in session.scalars(select(Webhook).where(Webhook.id.in_(ids))):
        found[webhook.id] = webhook.name or urlsplit(webhook.url).hostname or webhook.url
    return found
