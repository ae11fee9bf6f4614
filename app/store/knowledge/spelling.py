"""Words of the index that are near a word which it does not have."""

from __future__ import annotations

import string
from collections.abc import Iterator

MIN_CHARS = 4
"""Shorter words are near too many others."""
MIN_CHARS_OF_TWO = 7
"""Words of so many characters may have two errors."""
SAME_CHARS = 3
"""Of a word with two errors, so many first characters are right: the index can be searched by them."""
MAX_ERRORS = 2


def one_error_away(word: str) -> Iterator[str]:
    """Yields all that a word becomes by one character less, more or other, or two that change places.

    Source: P. Norvig, How to Write a Spelling Corrector, 2007.
    """
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        if after:
            yield before + after[1:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        for letter in string.ascii_lowercase:
            yield before + letter + after
            if after:
                yield before + letter + after[1:]


def errors_between(word: str, other: str, most: int = MAX_ERRORS) -> int:
    """Returns how many such changes make ``other`` of ``word``; ``most`` + 1 stands for more.

    This is the restricted Damerau-Levenshtein distance (F. Damerau, 1964).
    """
    if abs(len(word) - len(other)) > most:
        return most + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(word, start=1):
        current = [row]
        for column, other_letter in enumerate(other, start=1):
            errors = min(last[column] + 1, current[-1] + 1, last[column - 1] + (letter != other_letter))
            if row > 1 and column > 1 and letter == other[column - 2] and other_letter == word[row - 2]:
                errors = min(errors, before[column - 2] + 1)
            current.append(errors)
        if min(current) > most:
            return most + 1
        before, last = last, current
    return min(last[-1], most + 1)
