"""Markdown's marks in plain text: stripped from titles and excerpts, escaped in what is put into Markdown."""

from __future__ import annotations

import re
import sys

_SPECIAL = re.compile(r"([\\`*_\]<>&#~|$!])")  # no opening bracket: the page reads "\[" as mathematics
_REACH = 300  #: most characters between the two marks of a pair: titles and excerpts are short
_AT_LINE_START = re.compile(r"^[ \t]{0,3}(?:#{1,6}[ \t]+|(?:>[ \t]?)+)", re.MULTILINE)
_FENCE = re.compile(r"`{3,}|~{3,}")
# Marks must be paired: "**kwargs" and "2 ** 3" stay as they are.
_PAIRS = (
    re.compile(rf"(?<!`)(`{{1,2}})(?!`)[^`\n]{{1,{_REACH}}}\1(?!`)"),
    re.compile(rf"(\*\*\*|\*\*|~~)(?=[^\s*~])[^\n]{{1,{_REACH}}}?(?<=[^\s*~])\1"),
)


def mark_positions(text: str, start: int = 0, end: int = sys.maxsize) -> set[int]:
    """Positions in ``text`` between ``start`` and ``end`` that belong to a mark."""
    begin, stop = max(start - _REACH, 0), min(end + _REACH, len(text))
    found: set[int] = set()
    for pattern in (_AT_LINE_START, _FENCE):
        for match in pattern.finditer(text, begin, stop):
            found.update(range(*match.span()))
    for pattern in _PAIRS:
        for match in pattern.finditer(text, begin, stop):
            width = len(match[1])
            found.update(range(match.start(), match.start() + width), range(match.end() - width, match.end()))
    return found


def escape_marks(text: str) -> str:
    """A line of text as Markdown that shows it as it is, unless the line begins with it."""
    return _SPECIAL.sub(r"\\\1", text)


def strip_marks(text: str) -> str:
    """``text`` without its marks."""
    marks = mark_positions(text)
    return "".join(char for at, char in enumerate(text) if at not in marks) if marks else text
