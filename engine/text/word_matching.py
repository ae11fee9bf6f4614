"""Finds whole words in growing text, in any casing and any Unicode form.

Text is folded character by character, so that a match does not depend on how the text is split: compatibility
forms become plain ones (full-width and styled letters, ligatures), case is folded, accented letters are decomposed,
white space becomes a space, and invisible characters (soft hyphens, zero-width characters, controls) are dropped.
This is Unicode's compatibility caseless matching (D146 in chapter 3), one character at a time.

A word is found where no letter, digit or combining mark stands directly before or after it: "ass" is in "Ass!",
"_ASS_" and "ass's", not in "class". An edge where the word itself has no such character ("c++" ends in none) needs no
boundary, nor does an edge in a script that is written without spaces (Chinese, Japanese, Thai, ...).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

HIT = -1
"""The state after text that certainly contains a word."""

_UNSPACED = (
    "CJK UNIFIED", "CJK COMPATIBILITY", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "BOPOMOFO", "YI SYLLABLE", "THAI", "LAO",
    "KHMER", "MYANMAR", "TIBETAN",
)  # fmt: skip
_COMPOSED = ("HANGUL", "HIRAGANA", "KATAKANA")  # decomposing these gives other characters, not accents

#: Invisible characters outside Unicode's formatting category: fillers, joiners and variation selectors.
_INVISIBLE = frozenset(
    map(chr, [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x3164, 0xFFA0])
) | frozenset(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))

_OTHER_LETTER, _OTHER = "\x01", "\x00"  # stand for all characters that no word contains


def fold(text: str) -> str:
    """Folds ``text`` for comparison. ``fold(a) + fold(b) == fold(a + b)``."""
    return "".join(map(_fold_character, text))


def is_word_character(character: str) -> bool:
    """Whether this is a letter, digit or combining mark (of folded text): a word does not end between two of them."""
    return character.isalnum() or unicodedata.category(character).startswith("M")


@cache
def _fold_character(character: str) -> str:
    if character.isspace():
        return " "
    if character in _INVISIBLE or unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", character).casefold())
    return "".join(
        part if unicodedata.name(part, "").startswith(_COMPOSED) else unicodedata.normalize("NFD", part)
        for part in folded
    )


def _needs_boundary(character: str) -> bool:
    return is_word_character(character) and not unicodedata.name(character, "").startswith(_UNSPACED)


@dataclass(slots=True)
class _Node:
    """A trie node: a prefix of words.

    ``ends``: a word is complete here, whatever follows. ``ends_before_boundary``: a word is complete here if no
    letter, digit or mark follows.
    """

    children: dict[str, int] = field(default_factory=dict)
    ends: bool = False
    ends_before_boundary: bool = False


class WordMatcher:
    """An automaton over folded characters that builds its states lazily. Not thread-safe.

    A state is a number for a set of trie nodes: the prefixes of words that the text may end with. Two states have a
    union, for text that is not certain.

    Args:
        words: any strings; surrounding white space is stripped, white space within them counts as one space.

    Raises:
        ValueError: a word has no visible character.
    """

    _FREE, _BOUNDED = 0, 1  # the roots of words that start anywhere, and of those that start at a boundary

    def __init__(self, words: Iterable[str]) -> None:
        self._nodes = [_Node(), _Node()]
        self.words = frozenset(self._insert(word) for word in words)  #: folded
        self._symbols: dict[str, str] = {character: character for word in self.words for character in word}
        self._states: dict[frozenset[int], int] = {}
        self._members: list[frozenset[int]] = []
        self._next: list[dict[str, int]] = []
        self._pending: list[bool] = []
        self.start = self._state(frozenset([self._FREE, self._BOUNDED]))  #: at the start, and at any boundary
        self.within = self._state(frozenset([self._FREE]))  #: after a letter, with no partial match

    def step(self, state: int, folded: str) -> int:
        """Returns the state after ``folded`` characters; :data:`HIT` if they certainly complete a word."""
        for character in folded:
            symbol = self._symbols.get(character)
            if symbol is None:
                symbol = _OTHER_LETTER if is_word_character(character) else _OTHER
                self._symbols[character] = symbol
            following = self._next[state].get(symbol)
            if following is None:
                following = self._next[state][symbol] = self._follow(state, character)
            if following == HIT:
                return HIT
            state = following
        return state

    def is_pending(self, state: int) -> bool:
        """Whether the text ends with a word that counts if the text ends here or no letter, digit or mark follows."""
        return self._pending[state]

    def is_at_boundary(self, state: int) -> bool:
        """Whether a word that needs a boundary before it may start here."""
        return self._BOUNDED in self._members[state]

    def union(self, one: int, other: int) -> int:
        """Returns the state of a text that may be in either state; a hit in one of them is a hit."""
        if HIT in (one, other):
            return HIT
        return one if one == other else self._state(self._members[one] | self._members[other])

    def remainders(self, state: int) -> set[tuple[str, bool]]:
        """Returns what completes each partial match: the characters, and whether a boundary must follow."""
        found: set[tuple[str, bool]] = set()
        waiting = [(node, "") for node in self._members[state] if node not in (self._FREE, self._BOUNDED)]
        while waiting:
            index, text = waiting.pop()
            node = self._nodes[index]
            if node.ends:
                found.add((text, False))
                continue
            if node.ends_before_boundary:
                found.add((text, True))
            waiting += [(child, text + character) for character, child in node.children.items()]
        return found

    def _insert(self, word: str) -> str:
        folded = " ".join(fold(word).split())
        visible = [character for character in folded if not unicodedata.category(character).startswith("M")]
        if not visible:
            raise ValueError(f"a forbidden word needs a visible character (got {word!r})")
        index = self._BOUNDED if _needs_boundary(visible[0]) else self._FREE
        for character in folded:
            index = self._nodes[index].children.setdefault(character, len(self._nodes))
            if index == len(self._nodes):
                self._nodes.append(_Node())
        if _needs_boundary(visible[-1]):
            self._nodes[index].ends_before_boundary = True
        else:
            self._nodes[index].ends = True
        return folded

    def _follow(self, state: int, character: str) -> int:
        inside = is_word_character(character)
        members = {self._FREE} if inside else {self._FREE, self._BOUNDED}
        for index in self._members[state]:
            node = self._nodes[index]
            child = node.children.get(character)
            if (node.ends_before_boundary and not inside) or (child is not None and self._nodes[child].ends):
                return HIT
            if child is not None:
                members.add(child)
        return self._state(frozenset(members))

    def _state(self, members: frozenset[int]) -> int:
        state = self._states.setdefault(members, len(self._members))
        if state == len(self._members):
            self._members.append(members)
            self._next.append({})
            self._pending.append(any(self._nodes[index].ends_before_boundary for index in members))
        return state


class WordGuard:
    """Holds back the end of a text while it would be a word, so that a text cut anywhere does not end with one."""

    def __init__(self, matcher: WordMatcher) -> None:
        self._matcher = matcher
        self._state = matcher.start
        self._held = ""

    def push(self, text: str) -> str:
        """Adds text and returns what may be shown now. Text still held back at the end is never shown."""
        safe = 0
        for end, character in enumerate(text, start=1):
            state = self._matcher.step(self._state, _fold_character(character))
            self._state = self._matcher.start if state == HIT else state
            if not self._matcher.is_pending(self._state):
                safe = end
        if safe == 0:
            self._held += text
            return ""
        shown, self._held = self._held + text[:safe], text[safe:]
        return shown
