"""Says in plain words why llguidance refuses a grammar."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

MAX_REASON_CHARS = 300
"""Maximum characters of a reason; the rest is cut off."""

_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): ")
_IN_SCHEMA = re.compile(r"^failed to compile JSON schema: ")
_TOO_LARGE: Final = "it is too large to follow, or only a text without end can match it; make it smaller or less nested"

_REASONS: Final[Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]] = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), reason)
    for pattern, reason in (
        ("^NoExtension", lambda _: "no text can match it"),
        ("panick|unwrap|assertion|internal error", lambda _: _TOO_LARGE),
        ("too many items|current row has|lexer fuel|step limit|too complex", lambda _: _TOO_LARGE),
        (r"lookarounds? not supported|look-around", lambda _: "look-around and word boundaries are not supported"),
        (r"regex parse error:.*\nerror: ([^\n]+)", lambda found: f"the expression is malformed: {found[1]}"),
        (r"regex parse error:", lambda _: "the expression is malformed"),
        (r"unknown special token: (\S+);", lambda found: f"the model has no special token {found[1]}"),
        (r'unknown name: "([^"]+)"', lambda found: f"it names the rule {found[1]}, which it does not define"),
        (r"Rule '([^']+)' not found", lambda found: f"it names the rule {found[1]}, which it does not define"),
        (r"(?:too deeply nested|nested too deep)", lambda _: "it is nested too deep"),
        (
            r"Resource '([^']+)' is not present",
            lambda found: f"{found[1]} lies outside of it, and no reference may",
        ),
        (
            r"^Unimplemented keys: \[(.*)\]",
            lambda found: f"these keywords of JSON Schema are not supported: {found[1]}",
        ),
        (
            "^oneOf constraints are not supported",
            lambda _: 'the keyword "oneOf" is supported only where its schemas exclude each other; use "anyOf" instead',
        ),
        (
            "^Failed to generate regex for",
            lambda _: '"minimum", "maximum", "exclusiveMinimum" or "exclusiveMaximum" has too many digits',
        ),
    )
)
"""The reasons, by what the library's message holds; the first that is found is taken."""


def reason_of(message: str) -> str:
    """Returns the reason without the library's own places and excerpts; its own words where they are plain."""
    message = message.replace("<non-verbose/>", "").strip()
    message = _IN_SCHEMA.sub("", _PLACE.sub("", message))
    for pattern, reason in _REASONS:
        if found := pattern.search(message):
            return reason(found)[:MAX_REASON_CHARS]
    first_line = message.partition("\n")[0]
    return first_line.strip().rstrip(".")[:MAX_REASON_CHARS]
