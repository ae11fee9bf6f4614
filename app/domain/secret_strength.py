"""Checks whether a secret is strong enough."""

from __future__ import annotations

import re

MIN_SECRET_CHARS = 32
_MIN_DISTINCT_CHARS = 10
#: Placeholders from examples, and typical temporary values.
_WORDS = re.compile(
    r"change.?(me|this|it)|your.?secret|replace|example|password|secret.?key|insert.?here|to.?do|12345678"
)

HOW_TO_MAKE_ONE = "Make one with: openssl rand -base64 48"


def weakness_of(secret: str) -> str | None:
    """Why ``secret`` can be guessed, as the end of a sentence that begins with its name; None if it is strong."""
    if len(secret) < MIN_SECRET_CHARS:
        return f"has {len(secret)} characters and needs at least {MIN_SECRET_CHARS}"
    if len(set(secret)) < _MIN_DISTINCT_CHARS:
        return "repeats the same few characters, so it can be guessed"
    if _WORDS.search(secret.lower()):
        return "is a publicly known placeholder"
    return None
