"""Webhooks: addresses that are told what happens to cases, and how what they are told is signed. Plain data; no I/O.

Requests follow the Standard Webhooks specification (https://www.standardwebhooks.com), for which there are libraries in
most languages: ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature`` headers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import urlsplit

from app.domain.cases import CaseEventKind
from app.domain.text import clean_text, one_line
from app.errors import InvalidInput

MESSAGE_EVENT = "message.created"
EVENTS = (*(f"case.{kind}" for kind in CaseEventKind), MESSAGE_EVENT)
"""All that a webhook can be told."""
TEST_EVENT = "webhook.test"
"""What an admin sends to see whether a webhook works. It is told of no case, and is tried once."""

MAX_URL_CHARS = 2000
MAX_NAME_CHARS = 100
RETRY_SECONDS = (5, 30, 120, 600, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
"""Waits after failed attempts: a receiver may be away for most of a day. After the last one a delivery has failed."""
MAX_LOST_CLAIMS = 30
"""A delivery is given up once so many servers in a row were killed while they made it: perhaps it is what kills them.
It loses at most one a minute, so the restarts of a server that is killed for other reasons seldom get there."""
SUSPECT_AFTER_LOST_CLAIMS = 3
"""From so many lost claims in a row on, a delivery is made alone, so that it takes no others with it."""
MAX_FAILING_DAYS = 5
"""A webhook is disabled by a delivery that is given up after this many days without any successful attempt."""
GONE = 410  #: the status with which a receiver ends a webhook, as the specification says
PREVIOUS_SECRET_HOURS = 24
"""Requests are signed with the key before, too, for this long, so that a receiver can change its key in time."""

_SECRET_PREFIX = "whsec_"
_SECRET_BYTES = 32


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  #: given up; it can be replayed


class DisabledReason(StrEnum):
    """Why a webhook is off."""

    ADMIN = "admin"  #: an admin disabled it
    GONE = "gone"  #: its receiver answered 410
    FAILING = "failing"  #: every attempt failed for :data:`MAX_FAILING_DAYS`


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookView:
    """A webhook, without its secret."""

    id: str
    name: str  #: one that has none is called by the host of its address
    url: str
    inbox_id: str | None  #: None: every inbox
    events: tuple[str, ...]  #: empty: all
    enabled: bool
    failing_since: datetime | None  #: the first failed attempt after the last successful one
    failure: str | None  #: the sentence of the last failed attempt since then
    disabled_at: datetime | None
    disabled_reason: DisabledReason | None
    created_at: datetime
    num_pending: int  #: deliveries that are to be made
    num_failed: int  #: deliveries that were given up


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryView:
    """What a webhook was, or is to be, told."""

    id: str
    event_id: str
    event: str
    case_id: str | None
    status: DeliveryStatus
    attempts: int  #: finished ones
    next_attempt_at: datetime | None  #: while one is being made: when it is made again if its server is killed
    response_status: int | None  #: of the last attempt; None while another one is being made
    error: str | None  #: likewise
    created_at: datetime
    delivered_at: datetime | None


def new_secret() -> str:
    """Returns the key of a new webhook: 256 random bits."""
    return _SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def sign(keys: Sequence[str], event_id: str, timestamp: int, body: bytes) -> str:
    """Returns the ``webhook-signature`` of a request: one signature for each key, separated by spaces.

    Args:
        keys: the secret, and for a while after a change also the one before.
        timestamp: of ``webhook-timestamp``, in seconds since 1970. Receivers refuse old requests, which may be replays.
    """
    signed = f"{event_id}.{timestamp}.".encode() + body
    digests = (
        hmac.new(base64.b64decode(key.removeprefix(_SECRET_PREFIX)), signed, hashlib.sha256).digest() for key in keys
    )
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)


def check_name(name: str) -> str | None:
    """Returns the name of a webhook as it is stored; None: it is called by its address.

    Raises:
        InvalidInput: it is too long.
    """
    name = one_line(clean_text(name))
    if len(name) > MAX_NAME_CHARS:
        raise InvalidInput(f"The name of a webhook can have at most {MAX_NAME_CHARS} characters. Shorten it.")
    return name or None


def check_url(url: str) -> str:
    """Returns the address of a webhook, checked.

    Raises:
        InvalidInput: it is no address that can be posted to.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or len(url) > MAX_URL_CHARS or not url.isprintable():
        raise InvalidInput("The address of a webhook must begin with https:// or http:// and name a host.")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("The address of a webhook must hold no name or password: what is sent is signed.")
    return url


def check_events(events: list[str]) -> list[str]:
    """Returns the names of events, each once.

    Raises:
        InvalidInput: one of them does not exist.
    """
    unknown = [event for event in events if event not in EVENTS]
    if unknown:
        raise InvalidInput(f"There is no event '{unknown[0][:40]}'. Events are {', '.join(EVENTS)}.")
    return list(dict.fromkeys(events))


def retry_after(attempts: int) -> int | None:
    """Returns the seconds to wait after the given number of failed attempts; None to give up."""
    return RETRY_SECONDS[attempts - 1] if attempts <= len(RETRY_SECONDS) else None
