"""The outbox of webhooks: what they are to be told is stored in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import bindparam, delete, or_, select
from sqlalchemy.orm import Session

from app.domain.case_views import CaseMessage
from app.domain.ids import new_id
from app.domain.webhooks import MESSAGE_EVENT
from app.store.db.case_models import CaseEvent, SupportCase, Webhook, WebhookDelivery
from app.store.db.prepared_statements import Prepared
from app.store.db.rows import change_rows

_WEBHOOKS = Prepared(
    select(Webhook.id, Webhook.events).where(
        Webhook.enabled, or_(Webhook.inbox_id.is_(None), Webhook.inbox_id == bindparam("inbox_id"))
    )
)


def enqueue_events(session: Session, case: SupportCase, events: Sequence[CaseEvent]) -> None:
    """Stores what the webhooks are told of a case's events, such as ``case.resolved``."""
    for event in events:
        body = {
            "reason": event.reason,
            "actor": {"kind": event.actor_kind, "id": event.actor_id},
            "details": event.details,
        }
        _enqueue(session, case, f"case.{event.kind}", event.id, event.at, body)


def enqueue_message(session: Session, case: SupportCase, message: CaseMessage) -> None:
    """Stores what the webhooks are told of a message, which is no note."""
    body = {
        "message": {
            "id": message.id,
            "author": {"kind": message.author, "id": message.author_id, "name": message.author_name},
            "text": message.text,
            "status": message.status,
            "client_id": message.client_id,
        }
    }
    _enqueue(session, case, MESSAGE_EVENT, message.id, message.created_at, body)


def forget_deliveries(session: Session, case_ids: Sequence[str]) -> None:
    """Deletes what webhooks were told of these cases, which holds messages, and what they are still to be told."""
    change_rows(session, delete(WebhookDelivery).where(WebhookDelivery.case_id.in_(case_ids)))


def _enqueue(
    session: Session, case: SupportCase, event: str, event_id: str, at: datetime, body: dict[str, Any]
) -> None:
    for webhook_id, wanted in _webhooks(session, case.inbox_id):
        if wanted and event not in wanted:
            continue
        payload = {
            "id": event_id,
            "event": event,
            "at": at.astimezone(UTC).isoformat(),
            "case": {
                "id": case.id,
                "inbox_id": case.inbox_id,
                "contact_id": case.contact_id,
                "status": case.status,
                "priority": case.priority,
                "assignee_id": case.assignee_id,
                "subject": case.subject,
            },
            **body,
        }
        session.add(
            WebhookDelivery(
                id=new_id(),
                webhook_id=webhook_id,
                event_id=event_id,
                event=event,
                case_id=case.id,
                payload=payload,
                status="pending",
                attempts=0,
                next_attempt_at=datetime.now(UTC),
                created_at=datetime.now(UTC),
            )
        )


def _webhooks(session: Session, inbox_id: str) -> Sequence[tuple[str, Sequence[str]]]:
    """Ids and wanted events of an inbox's webhooks, read once in a transaction."""
    found: dict[str, Sequence[tuple[str, Sequence[str]]]] = session.info.setdefault("webhooks", {})
    if inbox_id not in found:
        # Without a flush: the case is written once, with what comes after this.
        rows = _WEBHOOKS.rows(session.connection(), {"inbox_id": inbox_id})
        found[inbox_id] = [(id, events) for id, events in rows]
    return found[inbox_id]
