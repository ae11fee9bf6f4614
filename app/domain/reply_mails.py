"""Replies by e-mail to visitors who have gone: the server that takes them, and when they are tried again. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from email.errors import HeaderParseError
from email.headerregistry import Address
from enum import StrEnum
from typing import Literal

MailTls = Literal["starttls", "tls", "none"]
PORTS: dict[MailTls, int] = {"starttls": 587, "tls": 465, "none": 25}

RETRY_SECONDS = (60, 300, 1800, 2 * 3600, 6 * 3600, 12 * 3600)
"""Waits after failed attempts. After the last one, a mail has failed."""
MAX_AGE = timedelta(days=2)
"""A reply that could not be mailed within this time, such as while the server was off, is not mailed any more."""


class ReplyMailStatus(StrEnum):
    PENDING = "pending"
    SENT = "sent"
    READ = "read"  #: in the widget, before it was due
    NO_ADDRESS = "no_address"  #: the contact had left none when it was due
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """The server of mail that the settings name."""

    host: str
    port: int
    tls: MailTls
    sender: str  #: an address, or a name with one in angle brackets
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    delay: timedelta  #: after the last reply, within which it may be read in the widget


def is_address(text: str) -> bool:
    """Whether a text is one e-mail address and nothing else, such as a line break."""
    try:
        address = Address(addr_spec=text)
    except (ValueError, HeaderParseError, IndexError):
        return False
    return bool(address.username and address.domain) and text.isprintable() and " " not in text


def retry_after(attempts: int) -> float | None:
    """Seconds until the next attempt after so many failed ones; None: there is no other."""
    return RETRY_SECONDS[attempts - 1] if attempts <= len(RETRY_SECONDS) else None
