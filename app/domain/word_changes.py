"""The difference of two texts, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

MAX_WORDS = 2000
"""Words between the texts' common beginning and end that are compared; longer ones count as replaced as a whole.

Comparing takes time in the square of their number."""

_WORD = re.compile(r"\s*\S+")  # with the space before it, so that spaces are no words of their own


class WordChangeKind(StrEnum):
    SAME = "same"
    REMOVED = "removed"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class WordChange:
    """A run of words that both texts have, or only the first (removed), or only the second (added)."""

    kind: WordChangeKind
    text: str


def word_changes(before: str, after: str) -> tuple[WordChange, ...]:
    """Returns what makes the first text the second, in order.

    The texts of what is not added are the first text, and those of what is not removed the second.
    """
    old, new = _words(before), _words(after)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    changes = [(WordChangeKind.SAME, old[:start])]
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(middle_old), len(middle_new)) > MAX_WORDS:
        changes += [(WordChangeKind.REMOVED, middle_old), (WordChangeKind.ADDED, middle_new)]
    else:
        for tag, i, j, k, m in SequenceMatcher(None, middle_old, middle_new).get_opcodes():
            if tag == "equal":
                changes.append((WordChangeKind.SAME, middle_old[i:j]))
            else:
                changes += [(WordChangeKind.REMOVED, middle_old[i:j]), (WordChangeKind.ADDED, middle_new[k:m])]
    changes.append((WordChangeKind.SAME, old[len(old) - end :]))
    return _merged(changes)


def _words(text: str) -> list[str]:
    words = _WORD.findall(text)
    rest = text[sum(map(len, words)) :]
    return [*words, rest] if rest else words


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """How many words both begin with."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _merged(changes: Sequence[tuple[WordChangeKind, Sequence[str]]]) -> tuple[WordChange, ...]:
    merged: list[WordChange] = []
    for kind, words in changes:
        text = "".join(words)
        if merged and merged[-1].kind is kind:
            merged[-1] = WordChange(kind, merged[-1].text + text)
        elif text:
            merged.append(WordChange(kind, text))
    return tuple(merged)
