"""The text of a reply as it arrives, read by parsers that are generators and wait where the text is not there yet."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")
Parse = Generator[None, None, T]
"""A parser: yields whenever it needs more text, and returns its result."""

Sink = Callable[[str], None]
"""Takes text as it becomes certain."""

_SPACE = re.compile(r"\s*")


class BrokenReplyError(Exception):
    """The text is not in the format that it began in, or ends within it."""


class TextSource:
    """Text that arrives in pieces. Reading a character takes constant time, however large the pieces are."""

    def __init__(self) -> None:
        self.has_ended = False  #: no more text follows
        self._text = ""
        self._at = 0  # characters of the text that were read
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        """Adds text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def start_recording(self) -> None:
        """Keeps what is read from now on, see :meth:`stop_recording`."""
        self._record = []

    @property
    def is_recording(self) -> bool:
        return self._record is not None

    def stop_recording(self) -> str:
        """Returns the text that was read since recording started; empty if it was not started."""
        record, self._record = self._record, None
        return "".join(record or ())

    def take(self, count: int) -> str:
        """Reads ``count`` characters, which must be there."""
        taken = self._text[self._at : self._at + count]
        self._at += count
        if self._record is not None:
            self._record.append(taken)
        return taken

    def wait(self) -> Parse[bool]:
        """Waits until text arrives; False if none follows."""
        have = len(self._text) - self._at
        while not self.has_ended:
            yield
            if len(self._text) - self._at > have:
                return True
        return False

    def peek(self) -> Parse[str]:
        """Returns the next character without reading it; empty at the end."""
        while self._at >= len(self._text):
            if not (yield from self.wait()):
                return ""
        return self._text[self._at]

    def match(self, pattern: re.Pattern[str]) -> str:
        """Reads what the pattern matches in the text that is there; it may match more in text that follows."""
        found = pattern.match(self._text, self._at)
        return self.take(found.end() - found.start()) if found else ""

    def run(self, pattern: re.Pattern[str]) -> Parse[str]:
        """Reads all characters up to the first one that the pattern, of one repeated class, does not match."""
        parts = []
        while True:
            parts.append(self.match(pattern))
            if self._at < len(self._text) or not (yield from self.wait()):
                return "".join(parts)

    def space(self) -> Parse[str]:
        """Reads white space."""
        return (yield from self.run(_SPACE))

    def next_is(self, *literals: str) -> Parse[str]:
        """Returns the one of the literals that the text goes on with, without reading it; empty if none does.

        Where one literal starts with another, the longer one wins.
        """
        while True:
            rest = self._text[self._at : self._at + max(map(len, literals), default=0)]
            if not any(literal != rest and literal.startswith(rest) for literal in literals):
                break
            if not (yield from self.wait()):
                rest = self._text[self._at :]
                break
        return max((literal for literal in literals if rest.startswith(literal)), key=len, default="")

    def accept(self, *literals: str) -> Parse[str]:
        """Reads one of the literals and returns it; empty, and nothing is read, if the text goes on otherwise."""
        found = yield from self.next_is(*literals)
        return self.take(len(found)) if found else ""

    def expect(self, literal: str) -> Parse[None]:
        """Reads the literal.

        Raises:
            BrokenReplyError: the text goes on otherwise.
        """
        if literal and not (yield from self.accept(literal)):
            raise BrokenReplyError

    def until(self, stops: Sequence[str], sink: Sink) -> Parse[str]:
        """Passes text to the sink up to the first of the stop texts, which it reads and returns; empty at the end.

        Text that may be the start of a stop text is passed on once it certainly is none.
        """
        search = _any_of(tuple(stops))
        while True:
            found = search.search(self._text, self._at)
            if found:
                if self._at < found.start():
                    sink(self.take(found.start() - self._at))
                return (yield from self.accept(*stops))
            keep = 0 if self.has_ended else overlap(self._text, self._at, stops)
            if len(self._text) - self._at > keep:
                sink(self.take(len(self._text) - self._at - keep))
            if not (yield from self.wait()):
                if self._at < len(self._text):
                    sink(self.take(len(self._text) - self._at))
                return ""


@cache
def _any_of(literals: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(literals, key=len, reverse=True))) or "(?!)")


def overlap(text: str, start: int, stops: Sequence[str]) -> int:
    """Length of the longest end of ``text[start:]`` that is the beginning of a stop text and not all of it."""
    longest = max(map(len, stops), default=1) - 1
    for length in range(min(longest, len(text) - start), 0, -1):
        end = text[len(text) - length :]
        if any(stop.startswith(end) for stop in stops):
            return length
    return 0
