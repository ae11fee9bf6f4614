"""What is seen of accounts, sessions, links and keys. Plain data; no I/O."""

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
    """What a link is for."""

    INVITATION = "invitation"  #: an account
    RESET = "reset"  #: another password for an account that is there
    SETUP = "setup"  #: the first admin


class Scope(StrEnum):
    """What an API key opens."""

    CHAT = "chat"  #: replies, from /v1/chat/completions and /v1/completions
    MODELS = "models"  #: the list of models


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
    """A browser in which somebody is signed in."""

    id: str
    created_at: datetime
    last_seen_at: datetime
    user_agent: str
    address: str
    current: bool = False  #: the one that asks


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
    """An API key, without what makes it one."""

    id: str
    name: str
    beginning: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


def checked_name(name: str) -> str:
    """What somebody signs in with, as it is kept: in lower case.

    Raises:
        InvalidInput: it cannot be one.
    """
    name = fold_name(name)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            "The name to sign in with has 2 to 100 letters, digits and . _ - + @, and no blanks: a short name or an "
            "e-mail address."
        )
    if name == "local":
        raise InvalidInput("The name 'local' is that of the local user. Choose another one.")
    return name


def fold_name(name: str) -> str:
    """A name as it is looked for: case makes no difference."""
    return clean_text(name).strip().casefold()


def checked_display_name(display_name: str | None, name: str) -> str:
    """What others see, on one line; the name itself where nothing was given.

    Raises:
        InvalidInput: it is too long.
    """
    shown = one_line(clean_text(display_name or "")).strip() or name
    if len(shown) > MAX_NAME_CHARS:
        raise InvalidInput(f"The name to show has at most {MAX_NAME_CHARS} characters.")
    return shown


def checked_password(password: str, name: str) -> str:
    """A password that may be one. Long is what counts: no rules about signs and digits.

    Raises:
        InvalidInput: it is too short, too long, or can be guessed at once.
    """
    if len(password) < MIN_PASSWORD_CHARS:
        raise InvalidInput(f"The password has at least {MIN_PASSWORD_CHARS} characters; a few words make a good one.")
    if len(password) > MAX_PASSWORD_CHARS:
        raise InvalidInput(f"The password has at most {MAX_PASSWORD_CHARS} characters.")
    lowered = password.casefold()
    if lowered == name or len(set(lowered)) < 4 or lowered in _COMMON:
        raise InvalidInput("This password is among the first that anybody would try. Choose another one.")
    return password


#: Of the lists of most frequent passwords, those that are long enough.
# fmt: off
_COMMON = frozenset((
    "1234567890", "0123456789", "0987654321", "12345678910", "qwertyuiop", "1q2w3e4r5t", "1qaz2wsx3edc",
    "qwerty12345", "qwerty123456", "password12", "password123", "password1234", "password12345", "passw0rd123",
    "iloveyou12", "administrator", "letmein123", "letmein1234", "welcome123", "welcome1234", "changeme123",
    "abcdefghij", "abcdefghijkl", "asdfghjkl1", "asdfghjkl;", "superman123", "football123", "deskmate123",
    "deskmatedeskmate", "deskmate1234", "adminadmin", "admin12345", "admin123456"
))
# fmt: on
