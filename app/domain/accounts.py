"""Views of accounts, sessions, links and API keys, and checks of names and passwords. Plain data; no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.roles import UserRole
from app.domain.text import clean_text, one_line
from app.errors import InvalidInput

MAX_NAME_CHARS = 100
MIN_PASSWORD_CHARS = 10
MAX_PASSWORD_CHARS = 256

_NAME = re.compile(r"[\w.@+-]{2,100}")


class Purpose(StrEnum):
    """The purpose of a link."""

    INVITATION = "invitation"  #: create an account
    RESET = "reset"  #: choose a new password for an existing account
    SETUP = "setup"  #: create the first admin


class Scope(StrEnum):
    """Endpoints that an API key gives access to."""

    CHAT = "chat"  #: replies: /v1/chat/completions, /v1/completions, /v1/responses, and Gradio's endpoint /chat
    MODELS = "models"  #: the list of models
    CASES_READ = "cases:read"  #: inboxes and cases, and their events, as far as the key's user may read them
    CASES_WRITE = "cases:write"  #: contacts' messages, replies, notes, and what agents do with a case


@dataclass(frozen=True, slots=True)
class AccountView:
    """An account as its owner and admins see it."""

    id: str
    name: str
    display_name: str
    role: UserRole
    created_at: datetime
    disabled_at: datetime | None
    last_seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class SessionView:
    """A browser with a signed-in user."""

    id: str
    created_at: datetime
    last_seen_at: datetime
    user_agent: str
    address: str
    current: bool = False  #: the session of this request


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link that can still be used."""

    id: str
    purpose: Purpose
    role: UserRole
    note: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class KeyView:
    """An API key, without its secret."""

    id: str
    name: str
    beginning: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


def checked_name(name: str) -> str:
    """Validates a username and returns it in stored form: lower case.

    Raises:
        InvalidInput: it is not valid.
    """
    name = fold_name(name)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            "A username has 2 to 100 letters, digits and . _ - + @, and no spaces: a short name or an e-mail address."
        )
    if name == "local":
        raise InvalidInput("The name 'local' is reserved. Choose another one.")
    return name


def fold_name(name: str) -> str:
    """The case-insensitive form of a username."""
    return clean_text(name).strip().casefold()


def checked_display_name(display_name: str | None, name: str) -> str:
    """Validates the name that other users see, on one line; defaults to the username.

    Raises:
        InvalidInput: it is too long.
    """
    shown = one_line(clean_text(display_name or "")).strip() or name
    if len(shown) > MAX_NAME_CHARS:
        raise InvalidInput(f"The display name can have at most {MAX_NAME_CHARS} characters.")
    return shown


def checked_password(password: str, name: str) -> str:
    """Validates a password. Length is what counts: there are no rules about digits and symbols.

    Raises:
        InvalidInput: it is too short, too long, or easy to guess.
    """
    if len(password) < MIN_PASSWORD_CHARS:
        raise InvalidInput(f"The password needs at least {MIN_PASSWORD_CHARS} characters; a few words make a good one.")
    if len(password) > MAX_PASSWORD_CHARS:
        raise InvalidInput(f"The password can have at most {MAX_PASSWORD_CHARS} characters.")
    lowered = password.casefold()
    if lowered == name or len(set(lowered)) < 4 or lowered in _COMMON:
        raise InvalidInput("This password is too easy to guess. Choose another one.")
    return password


#: Entries of lists of the most frequent passwords that are long enough.
# fmt: off
_COMMON = frozenset((
    "1234567890", "0123456789", "0987654321", "12345678910", "qwertyuiop", "1q2w3e4r5t", "1qaz2wsx3edc",
    "qwerty12345", "qwerty123456", "password12", "password123", "password1234", "password12345", "passw0rd123",
    "iloveyou12", "administrator", "letmein123", "letmein1234", "welcome123", "welcome1234", "changeme123",
    "abcdefghij", "abcdefghijkl", "asdfghjkl1", "asdfghjkl;", "superman123", "football123", "deskmate123",
    "deskmatedeskmate", "deskmate1234", "adminadmin", "admin12345", "admin123456"
))
# fmt: on
