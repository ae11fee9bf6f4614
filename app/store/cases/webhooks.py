"""Webhooks and their deliveries, as admins see and change them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.domain.webhooks import (
    PREVIOUS_SECRET_HOURS,
    TEST_EVENT,
    DeliveryStatus,
    DeliveryView,
    DisabledReason,
    WebhookView,
    new_secret,
)
from app.errors import Conflict, LimitReached, NotFound
from app.store.cases.access import administered_inbox, require_admin
from app.store.db.case_models import Webhook, WebhookDelivery
from app.store.db.database import Database
from app.store.db.rows import is_id
from app.store.desk.audit import add_event

MAX_WEBHOOKS = 50
NO_WEBHOOK = "There is no such webhook. It may have been deleted."
NO_DELIVERY = "There is no such delivery. Those that ended more than 30 days ago are deleted."


class Webhooks:
    """The repository of webhooks, for admins."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, user_id: str) -> list[WebhookView]:
        """All webhooks, the oldest first.

        Raises:
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> list[WebhookView]:
            require_admin(session, user_id)
            return _views(session, session.scalars(select(Webhook).order_by(Webhook.id)).all())

        return await self._database.read(work)

    async def create(
        self, user_id: str, *, url: str, inbox_id: str | None, events: Sequence[str], name: str | None = None
    ) -> tuple[WebhookView, str]:
        """Creates a webhook and returns it with its secret, which is shown this once. Its values have been checked.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: there is no such inbox.
            LimitReached: there are :data:`MAX_WEBHOOKS` already.
        """

        def work(session: Session) -> tuple[WebhookView, str]:
            require_admin(session, user_id)
            if inbox_id is not None:
                administered_inbox(session, user_id, inbox_id)
            if (session.scalar(select(func.count()).select_from(Webhook)) or 0) >= MAX_WEBHOOKS:
                raise LimitReached(f"There are {MAX_WEBHOOKS} webhooks already. Delete one that is not needed.")
            webhook = Webhook(
                id=new_id(),
                inbox_id=inbox_id,
                name=name,
                url=url,
                secret=new_secret(),
                events=list(events),
                enabled=True,
                created_by=user_id,
                created_at=datetime.now(UTC),
            )
            session.add(webhook)
            add_event(session, user_id, AuditAction.WEBHOOK_CREATED, webhook.id)
            session.flush()
            return _views(session, [webhook])[0], webhook.secret

        return await self._database.write(work)

    async def change(self, user_id: str, webhook_id: str, **values: Any) -> WebhookView:
        """Changes ``name``, ``url``, ``inbox_id``, ``events`` or ``enabled``, which have been checked.

        A new address gets what is pending, too, and begins without failures, as does one that is enabled again.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: it, or the inbox, is missing.
        """

        def work(session: Session) -> WebhookView:
            webhook = _one(session, user_id, webhook_id)
            if values.get("inbox_id") is not None:
                administered_inbox(session, user_id, values["inbox_id"])
            begins_anew = values.get("url", webhook.url) != webhook.url
            if (enabled := values.get("enabled", webhook.enabled)) != webhook.enabled:
                begins_anew |= enabled
                webhook.disabled_at = None if enabled else datetime.now(UTC)
                webhook.disabled_reason = None if enabled else DisabledReason.ADMIN
            if begins_anew:
                webhook.failing_since = webhook.failure = None
            for name, value in values.items():
                setattr(webhook, name, value)
            add_event(session, user_id, AuditAction.WEBHOOK_CHANGED, webhook.id, fields=" ".join(sorted(values)))
            session.flush()
            return _views(session, [webhook])[0]

        return await self._database.write(work)

    async def renew_secret(self, user_id: str, webhook_id: str) -> str:
        """Gives the webhook a new secret and returns it. The one before signs for a while, too.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: it is missing.
        """

        def work(session: Session) -> str:
            webhook = _one(session, user_id, webhook_id)
            webhook.previous_secret = webhook.secret
            webhook.previous_secret_until = datetime.now(UTC) + timedelta(hours=PREVIOUS_SECRET_HOURS)
            webhook.secret = new_secret()
            add_event(session, user_id, AuditAction.WEBHOOK_SECRET_CHANGED, webhook.id)
            return webhook.secret

        return await self._database.write(work)

    async def send_test(self, user_id: str, webhook_id: str) -> DeliveryView:
        """Stores a test, which is made at once, and only once.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: it is missing.
            Conflict: it is disabled.
        """

        def work(session: Session) -> DeliveryView:
            webhook = _one(session, user_id, webhook_id)
            if not webhook.enabled:
                raise Conflict("This webhook is off, and is sent nothing. Switch it on first.")
            event_id, now = new_id(), datetime.now(UTC)
            row = WebhookDelivery(
                id=new_id(),
                webhook_id=webhook.id,
                event_id=event_id,
                event=TEST_EVENT,
                case_id=None,
                payload={"id": event_id, "event": TEST_EVENT, "at": now.isoformat(), "webhook": {"id": webhook.id}},
                status=DeliveryStatus.PENDING,
                attempts=0,
                next_attempt_at=now,
                created_at=now,
            )
            session.add(row)
            session.flush()
            return _delivery(row)

        return await self._database.write(work)

    async def delete(self, user_id: str, webhook_id: str) -> None:
        """Deletes a webhook with its deliveries.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: it is missing.
        """

        def work(session: Session) -> None:
            webhook = _one(session, user_id, webhook_id)
            session.execute(delete(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook.id))
            session.delete(webhook)
            add_event(session, user_id, AuditAction.WEBHOOK_DELETED, webhook_id)

        await self._database.write(work)

    async def deliveries(
        self, user_id: str, webhook_id: str, *, before: str | None = None, limit: int = 50
    ) -> list[DeliveryView]:
        """The deliveries of a webhook, the latest first, those with an id below ``before``.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: it is missing.
        """

        def work(session: Session) -> list[DeliveryView]:
            webhook = _one(session, user_id, webhook_id)
            query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook.id)
            if before is not None:
                query = query.where(WebhookDelivery.id < before)
            rows = session.scalars(query.order_by(WebhookDelivery.id.desc()).limit(limit)).all()
            return [_delivery(row) for row in rows]

        return await self._database.read(work)

    async def replay(self, user_id: str, webhook_id: str, delivery_id: str) -> DeliveryView:
        """Makes a delivery once more, with the same event id, at once.

        Raises:
            NotAllowed: the user is no admin.
            NotFound: it is missing.
        """

        def work(session: Session) -> DeliveryView:
            webhook = _one(session, user_id, webhook_id)
            # Locked: an attempt may be ending, and the ORM leaves out columns that look unchanged.
            row = session.get(WebhookDelivery, delivery_id, with_for_update=True) if is_id(delivery_id) else None
            if row is None or row.webhook_id != webhook.id:
                raise NotFound(NO_DELIVERY)
            row.status, row.attempts, row.claims = DeliveryStatus.PENDING, 0, 0
            row.next_attempt_at = datetime.now(UTC)
            row.response_status = row.error = row.delivered_at = None
            session.flush()
            return _delivery(row)

        return await self._database.write(work)


def _one(session: Session, user_id: str, webhook_id: str) -> Webhook:
    require_admin(session, user_id)
    found = session.get(Webhook, webhook_id) if is_id(webhook_id) else None
    if found is None:
        raise NotFound(NO_WEBHOOK)
    return found


def _views(session: Session, webhooks: Sequence[Webhook]) -> list[WebhookView]:
    counts: dict[tuple[str, str], int] = {
        (webhook_id, status): count
        for webhook_id, status, count in session.execute(
            select(WebhookDelivery.webhook_id, WebhookDelivery.status, func.count())
            .where(WebhookDelivery.webhook_id.in_([webhook.id for webhook in webhooks]))
            .group_by(WebhookDelivery.webhook_id, WebhookDelivery.status)
        )
    }
    return [
        WebhookView(
            id=webhook.id,
            name=webhook.name or urlsplit(webhook.url).hostname or webhook.url,
            url=webhook.url,
            inbox_id=webhook.inbox_id,
            events=tuple(webhook.events),
            enabled=webhook.enabled,
            failing_since=webhook.failing_since,
            failure=webhook.failure,
            disabled_at=webhook.disabled_at,
            disabled_reason=DisabledReason(webhook.disabled_reason) if webhook.disabled_reason else None,
            created_at=webhook.created_at,
            num_pending=counts.get((webhook.id, DeliveryStatus.PENDING), 0),
            num_failed=counts.get((webhook.id, DeliveryStatus.FAILED), 0),
        )
        for webhook in webhooks
    ]


def _delivery(row: WebhookDelivery) -> DeliveryView:
    return DeliveryView(
        id=row.id,
        event_id=row.event_id,
        event=row.event,
        case_id=row.case_id,
        status=DeliveryStatus(row.status),
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        response_status=row.response_status,
        error=row.error,
        created_at=row.created_at,
        delivered_at=row.delivered_at,
    )
