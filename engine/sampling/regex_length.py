"""Estimates how long a text must be to match a regular expression, without compiling it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|.)", re.DOTALL)
_COUNT: Final = re.compile(r"\{(\d+)(?:,\d*)?\}[?+]?")
_REPEAT: Final = re.compile(r"[*?+][?+]?")
_GROUP: Final = re.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?")


@dataclass(slots=True)
class _Group:
    """Lengths inside of one group, up to the place that is read."""

    shortest: int | None = None  # of the branches that have ended
    before: int = 0  # in this branch, without its last item
    last: int = 0

    def add(self, length: int) -> None:
        self.before, self.last = self.before + self.last, length

    def end_branch(self) -> int:
        length = self.before + self.last
        self.shortest = length if self.shortest is None else min(self.shortest, length)
        self.before = self.last = 0
        return self.shortest


def min_match_length(pattern: str) -> int:
    """Returns the number of characters of the shortest match; about, for a malformed expression or inline flags."""
    groups = [_Group()]
    at = 0
    while at < len(pattern):
        group, character = groups[-1], pattern[at]
        if found := _ESCAPE.match(pattern, at) or _CLASS.match(pattern, at):
            group.add(1)
        elif found := _COUNT.match(pattern, at):
            group.last *= int(found[1][:18])
        elif found := _GROUP.match(pattern, at):
            groups.append(_Group())
        elif character == ")":
            length = group.end_branch()
            if len(groups) > 1:
                groups.pop()
            groups[-1].add(length)
        elif character == "|":
            group.end_branch()
        elif found := _REPEAT.match(pattern, at):
            if character != "+":
                group.last = 0
        elif character not in "^$":
            group.add(1)
        at = found.end() if found else at + 1
    while len(groups) > 1:
        length = groups.pop().end_branch()
        groups[-1].add(length)
    return groups[0].end_branch()
