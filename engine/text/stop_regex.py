"""Ends a reply's text before the first match of a stop expression."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from engine.text.automaton import Automaton, Match, Read, State, closure, compile_expressions


@lru_cache(maxsize=256)
def compile_stop(stop: tuple[str, ...], stop_regex: tuple[str, ...]) -> Automaton:
    """Returns the automaton of stop strings and stop expressions. See :func:`compile_expressions`."""
    return compile_expressions(stop_regex, stop)


class RegexStopChecker:
    """A :class:`engine.text.stop_strings.StopChecker` whose stops are expressions, besides strings.

    The first match is the one that is complete first; if several end at the same character, the longest. So ``a+`` ends
    the text at the first a and does not wait for more of them. The result does not depend on how the text is split into
    pushes, and a push takes time in proportion to its length, however much is held back.

    Raises:
        ValueError: an expression cannot be used.
    """

    def __init__(self, stop: Sequence[str], stop_regex: Sequence[str]) -> None:
        self._automaton = compile_stop(tuple(stop), tuple(stop_regex))
        self._live: dict[State, int] = {}  # where the text that led to each state begins; the earliest comes first
        self._held: list[str] = []  # from where the earliest match in the making begins
        self._held_start = 0
        self._end = 0  # characters read
        self._before = ""  # the last one
        self._match_start = 0  # once a stop has matched
        self.matched: str | None = None  #: the stop string or expression that ended the text

    def skip(self, text: str) -> None:
        """Reads text that is not searched, but comes before the text that is."""
        self._before = text[-1:] or self._before

    def push(self, text: str) -> str:
        """Adds text and returns what became certain with it. Empty once a stop has matched."""
        if self.matched is not None:
            return ""
        for character in text:
            if self._read(character):
                return self._cut(text)
        num_certain = next(iter(self._live.values()), self._end) - self._held_start
        if num_certain == 0:
            self._held.append(text)
            return ""
        text = "".join([*self._held, text])
        self._held = [text[num_certain:]]
        self._held_start += num_certain
        return text[:num_certain]

    def release(self) -> str:
        """Returns the text held back, when no more text follows, up to a match that the end completes."""
        if self._settle(""):
            return self._cut("")
        held, self._held = self._held, []
        return "".join(held)

    def _read(self, character: str) -> bool:
        """Reads a character; whether a match ends before it or with it."""
        for state in self._automaton.first_states(self._before):
            self._live.setdefault(state, self._end)
        if self._automaton.looks_ahead and self._settle(character):
            return True
        seen: set[State] = set()  # shared: the earliest start reaches a state first, and no state is walked twice
        self._live = {
            following: start
            for state, start in self._live.items()
            if isinstance(state, Read) and state.accepts(character)
            for following in closure([state.then], character, seen=seen)
        }
        self._before = character
        self._end += 1
        return self._finds(self._live.items())

    def _settle(self, after: str) -> bool:
        """Decides the assertions that waited for the next character; whether a match is complete with them."""
        seen: set[State] = set()
        self._live = {
            reached: start
            for state, start in self._live.items()
            for reached in closure([state], self._before, after, seen)
        }
        return self._finds(self._live.items())

    def _finds(self, live: Iterable[tuple[State, int]]) -> bool:
        for state, start in live:
            if isinstance(state, Match):
                self.matched = state.expression
                self._match_start = start
                return True
        return False

    def _cut(self, text: str) -> str:
        held, self._held = self._held, []
        return "".join([*held, text])[: self._match_start - self._held_start]
