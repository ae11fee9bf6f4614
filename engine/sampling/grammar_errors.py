"""Says in plain words why llguidance refuses a grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_REASON_CHARS = 300
"""Maximum characters of a reason; the rest is cut off."""

_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): ")
_IN_SCHEMA = re.compile(r"^failed to compile JSON schema: ")
TOO_LARGE: Final = "it is too large to follow, or only a text without end can match it; make it smaller or less nested"

_REASONS: Final[Sequence[tuple[re.Pattern[str], str]]] = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), reason)
    for pattern, reason in (
        (r"^NoExtension", "no text can match it"),
        (r"lookarounds? not supported|look-around", "look-around and word boundaries are not supported"),
        (r"regex parse error:\n +([^\n]{1,60})[^\n]*\n.*\nerror: ([^\n]+)", r"the expression \1 is malformed: \2"),
        (r"regex parse error:", "the expression is malformed"),
        (r"unknown special token: (\S+);", r"the model has no special token \1"),
        (r'unknown name: "([^"]+)"', r"it names the rule \1, which it does not define"),
        (r"Rule '([^']+)' not found", r"it names the rule \1, which it does not define"),
        (r"Resource '([^']+)' is not present", r"\1 lies outside of it, and no reference may"),
        (r"^Unimplemented keys: \[(.*)\]", r"these keywords of JSON Schema are not supported: \1"),
        (
            r"^oneOf constraints are not supported",
            'the keyword "oneOf" is supported only where its schemas exclude each other; use "anyOf" instead',
        ),
        (
            r"^Failed to generate regex for",
            '"minimum", "maximum", "exclusiveMinimum" or "exclusiveMaximum" has too many digits',
        ),
        # The following words may stand in names and texts of a grammar, too, which the messages above quote.
        (r"(?:too deeply nested|nested too deep)", "it is nested too deep"),
        (r"panick|called .*unwrap|assertion .*failed|internal error", TOO_LARGE),
        (
            r"too many (?:items|expressions)|current row has|lexer (?:fuel|precomputation)|step limit|too complex",
            TOO_LARGE,
        ),
    )
)
"""The reasons, by what the message holds: the first that is found. ``\\1`` and ``\\2`` are its pattern's groups."""


def reason_of(message: str) -> str:
    """Returns the reason without the library's own places and excerpts; its own words where they are plain."""
    message = message.replace("<non-verbose/>", "").strip()
    message = _IN_SCHEMA.sub("", _PLACE.sub("", message))
    for pattern, reason in _REASONS:
        if found := pattern.search(message):
            return found.expand(reason)[:MAX_REASON_CHARS]
    first_line = message.partition("\n")[0]
    return first_line.strip().rstrip(".")[:MAX_REASON_CHARS]
