"""The difference of two texts, word by word."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.domain.model_size import parameters_text
from app.domain.word_changes import MAX_WORDS, WordChangeKind, word_changes

SAME, REMOVED, ADDED = WordChangeKind.SAME, WordChangeKind.REMOVED, WordChangeKind.ADDED

LONG = " ".join(f"w{number}" for number in range(MAX_WORDS + 1))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("", "a b"),
        ("a b", ""),
        ("same text", "same text"),
        ("It is 4711 [1].", "Dear Eve, it is 4711 [1]."),
        ("a b c d", "a x c y d"),
        ("a\n\nb  ", " a\nb\n"),
        ("a " * 3000, "a " * 2999 + "b"),
        (LONG, " ".join(reversed(LONG.split()))),
    ],
)
def test_the_changes_make_the_first_text_the_second(before: str, after: str) -> None:
    changes = word_changes(before, after)
    assert "".join(change.text for change in changes if change.kind is not ADDED) == before
    assert "".join(change.text for change in changes if change.kind is not REMOVED) == after
    assert all(one.kind is not two.kind for one, two in pairwise(changes))


def test_what_is_the_same_is_not_shown_as_changed() -> None:
    changes = word_changes("We send it on Monday.", "We send it on Friday, Eve.")
    assert [(change.kind, change.text) for change in changes] == [
        (SAME, "We send it on"),
        (REMOVED, " Monday."),
        (ADDED, " Friday, Eve."),
    ]


def test_numbers_of_parameters_are_words() -> None:
    numbers = {900: "900", 14_300_000: "14.3 million", 10**9: "1 billion", 1_540_000_000: "1.54 billion"}
    assert {number: parameters_text(number) for number in numbers} == numbers
    assert parameters_text(10**15) == "1,000,000 billion"
