"""Ends a reply's text before the first stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Ends a text before the first stop string, and holds back text that may be the start of one.

    The first stop string is the one that is complete first; if several end at the same character, the longest. So the
    result does not depend on how the text is split into pushes.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""  # the longest suffix of the text that starts a stop string
        self.matched: str | None = None  #: the stop string that ended the text

    def skip(self, text: str) -> None:
        """Reads text that is not searched, but comes before the text that is."""

    def push(self, text: str) -> str:
        """Adds text and returns what became certain with it. Empty once a stop string has matched."""
        if self.matched is not None:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            _end, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def release(self) -> str:
        """Returns the text held back, when no more text follows and it cannot become a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
