"""Identity tokens: a website signs who its customer is, with a key that only it and the inbox have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from app.domain.text import clean_text, one_line

ALGORITHM = "HS256"
"""The only one: a token's own header decides nothing."""
MAX_TOKEN_CHARS = 4096
MAX_LIFE_SECONDS = 3600
MAX_CLOCK_SKEW_SECONDS = 60
MAX_SUBJECT_CHARS, MAX_NAME_CHARS, MAX_EMAIL_CHARS = 200, 200, 320
_EMAIL = re.compile(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+\.[^\s@<>,;\"]+")


class WrongIdentity(Exception):
    """The token proves nothing. ``reason`` is for the website's developers and tells no secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CustomerIdentity:
    """A customer as the website knows them."""

    external_id: str
    name: str | None
    email: str | None


def read_identity(token: str, keys: Iterable[str], audience: str, now: datetime) -> CustomerIdentity:
    """Reads a JSON Web Token that is signed with one of the inbox's keys.

    Args:
        keys: the inbox's key, and for a while the one before it.
        audience: the inbox's public token, so that a token of another inbox is none.

    Raises:
        WrongIdentity: it is malformed, not signed by one of the keys, for another inbox, expired, or lives too long.
    """
    if len(token) > MAX_TOKEN_CHARS:
        raise WrongIdentity("The token is too long.")
    return _checked(_signed_claims(token, keys), audience, now.timestamp())


def is_email(text: str) -> bool:
    """Whether a text may be an e-mail address: only a message to it would tell."""
    return len(text) <= MAX_EMAIL_CHARS and _EMAIL.fullmatch(text) is not None


def _signed_claims(token: str, keys: Iterable[str]) -> dict[str, Any]:
    for key in keys:
        try:
            return jwt.decode(token, OctKey.import_key(key), algorithms=[ALGORITHM]).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            continue  # of the library's errors some are plain ones, such as for a payload that is no object
    raise WrongIdentity(f"The token is not signed with this inbox's key by {ALGORITHM}.")


def _checked(claims: dict[str, Any], audience: str, now: float) -> CustomerIdentity:
    if claims.get("aud") not in (audience, [audience]):
        raise WrongIdentity("aud is not the token of this inbox.")
    expires_at, issued_at = _seconds(claims, "exp"), _seconds(claims, "iat")
    if expires_at <= now:
        raise WrongIdentity("exp has passed.")
    if issued_at > now + MAX_CLOCK_SKEW_SECONDS:
        raise WrongIdentity("iat lies in the future.")
    if expires_at - issued_at > MAX_LIFE_SECONDS or expires_at - now > MAX_LIFE_SECONDS + MAX_CLOCK_SKEW_SECONDS:
        raise WrongIdentity("exp is more than an hour after iat.")
    not_before = claims.get("nbf")
    if not_before is not None and _seconds(claims, "nbf") > now + MAX_CLOCK_SKEW_SECONDS:
        raise WrongIdentity("nbf lies in the future.")
    subject = _text(claims, "sub", MAX_SUBJECT_CHARS)
    if not subject:
        raise WrongIdentity("sub is missing.")
    email = _text(claims, "email", MAX_EMAIL_CHARS)
    if email and not is_email(email):
        raise WrongIdentity("email is not an e-mail address.")
    return CustomerIdentity(subject, _text(claims, "name", MAX_NAME_CHARS) or None, email or None)


def _seconds(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e12:
        raise WrongIdentity(f"{name} is missing, or is no number of seconds.")
    return float(value)


def _text(claims: dict[str, Any], name: str, max_chars: int) -> str:
    value = claims.get(name, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise WrongIdentity(f"{name} is not a text.")
    text = one_line(clean_text(value))
    if len(text) > max_chars:
        raise WrongIdentity(f"{name} has more than {max_chars} characters.")
    return text
