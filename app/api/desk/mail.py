"""Desk API: whether replies are mailed to visitors who have gone, for admins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter

from app.api.deps import ServicesDep, UserId

router = APIRouter(prefix="/api/desk/mail", tags=["desk"])


@dataclass(frozen=True, slots=True)
class MailView:
    """Whether the server mails replies, and how the outbox is."""

    sender: str | None  #: the address that they are from; None: none are mailed
    server: str | None  #: its host and port
    delay_minutes: int
    pending: int  #: replies that wait, those that may still be read in the widget among them
    last_sent_at: datetime | None
    error: str | None  #: of the last failed attempt, while it is tried again


@router.get("")
async def get_mail(services: ServicesDep, user_id: UserId) -> MailView:
    """Returns whether visitors who have gone get replies by e-mail, and what is wrong with that."""
    server, status = services.settings.mail_server, await services.cases.mails.status(user_id)
    return MailView(
        sender=server.sender if server is not None else None,
        server=f"{server.host}:{server.port}" if server is not None else None,
        delay_minutes=services.settings.mail_delay_minutes,
        pending=status.num_pending,
        last_sent_at=status.last_sent_at,
        error=status.error,
    )
