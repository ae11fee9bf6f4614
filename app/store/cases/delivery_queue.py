"""The deliveries of webhooks that are due: the senders claim them, and record what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Select, delete, select, update
from sqlalchemy.orm import Session

from app.domain.webhooks import (
    GONE,
    MAX_FAILING_DAYS,
    MAX_LOST_CLAIMS,
    SUSPECT_AFTER_LOST_CLAIMS,
    TEST_EVENT,
    DeliveryStatus,
    DisabledReason,
    retry_after,
)
from app.store.db.case_models import Webhook, WebhookDelivery
from app.store.db.database import Database
from app.store.db.rows import change_rows

KEPT_DAYS = 30
"""Deliveries that were made or given up are kept for this long, so that they can be looked at and replayed."""
BATCH = 500  # rows per transaction of a cleanup
_TOO_MANY_LOST = f"{MAX_LOST_CLAIMS} times in a row, the server stopped before an attempt to send this had ended."


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A delivery that this process has claimed and is to make now."""

    id: str
    webhook_id: str
    event_id: str
    event: str
    url: str
    secrets: tuple[str, ...]  #: that sign it
    payload: dict[str, Any]
    attempts: int  #: that ended before this one
    lease_until: datetime  #: identifies the claim: a later one's is later


class DeliveryQueue:
    """The deliveries that are due, for the senders of all processes. Takes no user id: it applies to every webhook.

    Args:
        lease_seconds: a claimed delivery that was not finished within this time, because its process was killed, is
            claimed again. So each delivery is made at least once, and perhaps twice. A lost claim is no attempt: it
            says nothing about the receiver, and must not use up the waits that are for one in trouble. After
            :data:`MAX_LOST_CLAIMS` in a row the delivery is given up: it may be what kills the process.
    """

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self._database = database
        self._lease_seconds = lease_seconds

    async def claim(self, limit: int) -> list[DueDelivery]:
        """Claims the longest due deliveries, at most ``limit``."""

        def is_due(session: Session) -> bool:
            return session.scalar(_due(datetime.now(UTC)).limit(1)) is not None

        def work(session: Session) -> list[DueDelivery]:
            now = datetime.now(UTC)
            lease_until = now + timedelta(seconds=self._lease_seconds)
            found = session.execute(
                _due(now)
                .add_columns(WebhookDelivery.claims)
                .order_by(WebhookDelivery.next_attempt_at)
                .limit(limit)
                .with_for_update(of=WebhookDelivery, skip_locked=True)
            ).all()
            if lost := [id for id, claims in found if claims >= MAX_LOST_CLAIMS]:
                given_up = {"status": DeliveryStatus.FAILED, "next_attempt_at": None, "error": _TOO_MANY_LOST}
                change_rows(session, update(WebhookDelivery).where(WebhookDelivery.id.in_(lost)).values(given_up))
            suspects = [id for id, claims in found if SUSPECT_AFTER_LOST_CLAIMS <= claims < MAX_LOST_CLAIMS]
            ids = suspects[:1] or [id for id, claims in found if claims < MAX_LOST_CLAIMS]
            session.execute(
                update(WebhookDelivery)
                .where(WebhookDelivery.id.in_(ids))
                # What the last attempt ended with goes: that is how a reader tells that another one is being made.
                .values(
                    claims=WebhookDelivery.claims + 1, next_attempt_at=lease_until, response_status=None, error=None
                )
            )
            rows = session.execute(
                select(WebhookDelivery, Webhook)
                .join(Webhook, Webhook.id == WebhookDelivery.webhook_id)
                .where(WebhookDelivery.id.in_(ids))
                .order_by(WebhookDelivery.id)
            ).all()
            return [
                DueDelivery(
                    row.id,
                    webhook.id,
                    row.event_id,
                    row.event,
                    webhook.url,
                    _secrets(webhook, now),
                    row.payload,
                    row.attempts,
                    lease_until,
                )
                for row, webhook in rows
            ]

        # Looking first spares the database a write every few seconds.
        return await self._database.write(work) if await self._database.read(is_due) else []

    async def delivered(self, due: DueDelivery, response_status: int) -> None:
        """Records that the receiver has taken a delivery."""
        values = {
            "status": DeliveryStatus.DELIVERED,
            "next_attempt_at": None,
            "response_status": response_status,
            "error": None,
            "delivered_at": datetime.now(UTC),
        }

        def work(session: Session) -> None:
            _finish(session, due, values)
            works = update(Webhook).where(Webhook.id == due.webhook_id, Webhook.failing_since.is_not(None))
            session.execute(works.values(failing_since=None, failure=None))

        await self._database.write(work)

    async def failed(self, due: DueDelivery, error: str, response_status: int | None = None) -> None:
        """Records a failed attempt, and when to try again. Disables a receiver that answers 410, or fails for days."""
        now = datetime.now(UTC)
        wait = None if due.event == TEST_EVENT else retry_after(due.attempts + 1)
        values = {
            "status": DeliveryStatus.FAILED if wait is None else DeliveryStatus.PENDING,
            "next_attempt_at": None if wait is None else now + timedelta(seconds=wait),
            "response_status": response_status,
            "error": error,
        }

        def work(session: Session) -> None:
            if not _finish(session, due, values):
                return
            webhook = session.scalars(
                select(Webhook).where(Webhook.id == due.webhook_id).with_for_update(key_share=True)
            ).one_or_none()
            if webhook is None or webhook.url != due.url:  # deleted, or corrected meanwhile
                return
            webhook.failing_since, webhook.failure = webhook.failing_since or now, error
            reason = None
            if response_status == GONE:
                reason = DisabledReason.GONE
            elif wait is None and webhook.failing_since <= now - timedelta(days=MAX_FAILING_DAYS):
                reason = DisabledReason.FAILING
            if reason is not None and webhook.enabled:
                webhook.enabled, webhook.disabled_at, webhook.disabled_reason = False, now, reason

        await self._database.write(work)

    async def delete_old(self) -> int:
        """Deletes deliveries that ended more than :data:`KEPT_DAYS` ago, and returns how many."""
        deleted = 0
        while True:

            def work(session: Session) -> int:
                old = (
                    select(WebhookDelivery.id)
                    .where(
                        WebhookDelivery.status != DeliveryStatus.PENDING,
                        WebhookDelivery.created_at < datetime.now(UTC) - timedelta(days=KEPT_DAYS),
                    )
                    .limit(BATCH)
                )
                return change_rows(session, delete(WebhookDelivery).where(WebhookDelivery.id.in_(old)))

            count = await self._database.write(work)
            deleted += count
            if count < BATCH:
                return deleted


def _finish(session: Session, due: DueDelivery, values: dict[str, Any]) -> bool:
    """Writes how an attempt ended; False if that does not count any more."""
    # After a replay, or another claim after the lease, the delivery is due at another time: this result is ignored.
    ended = update(WebhookDelivery).where(
        WebhookDelivery.id == due.id, WebhookDelivery.next_attempt_at == due.lease_until
    )
    return change_rows(session, ended.values(attempts=due.attempts + 1, claims=0, **values)) == 1


def _secrets(webhook: Webhook, now: datetime) -> tuple[str, ...]:
    before, until = webhook.previous_secret, webhook.previous_secret_until
    is_valid = before is not None and until is not None and until > now
    return (webhook.secret, before) if before is not None and is_valid else (webhook.secret,)


def _due(now: datetime) -> Select[tuple[str]]:
    return (
        select(WebhookDelivery.id)
        .join(Webhook, Webhook.id == WebhookDelivery.webhook_id)
        .where(
            WebhookDelivery.next_attempt_at <= now, WebhookDelivery.status == DeliveryStatus.PENDING, Webhook.enabled
        )
    )
