"""What a searched word that no chunk has may have been meant as: the word it begins, or one that it misspells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from app.store.knowledge.concepts import Concept
from app.store.knowledge.spelling import (
    MAX_ERRORS,
    MIN_CHARS,
    MIN_CHARS_OF_TWO,
    SAME_CHARS,
    errors_between,
    one_error_away,
)
from app.store.knowledge.stems import stem
from app.store.knowledge.word_counts import chunk_counts, words_between

MIN_PREFIX = 3  # nearly every chunk has a word that begins with fewer
MAX_GUESSES = 8
MIN_CHARS_CERTAIN = 7
"""A shorter word has neighbours by chance: "moon" is no misspelt "room"."""
MAX_COMPARED = 500  # words with the same beginning, the most frequent first
PREFIX_WEIGHT, ONE_ERROR_WEIGHT, TWO_ERRORS_WEIGHT = 0.9, 0.8, 0.6
_LAST_CHARACTER = "\U0010ffff"


def guess(
    session: Session, collections: Collection[str], concepts: Sequence[Concept], known: Collection[str]
) -> list[Concept]:
    """Returns the concepts, those that nothing in the collections stands for with words near theirs instead.

    Args:
        known: words that chunks have, those of the concepts among them.
    """
    return [
        concept
        if any(all(word in known for word in phrase) for phrase in concept.variants)
        else _guessed(session, collections, concept, is_last=concept is concepts[-1])
        for concept in concepts
    ]


def _guessed(session: Session, collections: Collection[str], concept: Concept, *, is_last: bool) -> Concept:
    found: dict[str, float] = {}
    is_doubtful = False
    if is_last and len(concept.word) >= MIN_PREFIX:
        found = dict.fromkeys(_completions(session, collections, concept.word), PREFIX_WEIGHT)
    if not found and len(concept.word) >= MIN_CHARS and concept.word.isalpha():
        found = dict.fromkeys(_misspelt_once(session, collections, concept.word), ONE_ERROR_WEIGHT)
        is_doubtful = bool(found) and len(concept.word) < MIN_CHARS_CERTAIN
    if not found and len(concept.word) >= MIN_CHARS_OF_TWO and concept.word.isalpha():
        found = dict.fromkeys(_misspelt_twice(session, collections, concept.word), TWO_ERRORS_WEIGHT)
        is_doubtful = bool(found)
    variants = dict(concept.variants) | {(word,): weight for word, weight in found.items()}
    return replace(concept, variants=variants, is_doubtful=is_doubtful)


def _completions(session: Session, collections: Collection[str], word: str) -> list[str]:
    return list(words_between(session, collections, word, word + _LAST_CHARACTER, max_words=MAX_GUESSES))


def _misspelt_once(session: Session, collections: Collection[str], word: str) -> list[str]:
    near = set(map(stem, one_error_away(word)))
    found = chunk_counts(session, collections, (one for one in near if len(one) >= MIN_PREFIX))
    return sorted(found, key=lambda one: (-found[one], one))[:MAX_GUESSES]


def _misspelt_twice(session: Session, collections: Collection[str], word: str) -> list[str]:
    start = word[:SAME_CHARS]
    likely = words_between(session, collections, start, start + _LAST_CHARACTER, max_words=MAX_COMPARED)
    errors = {other: min(errors_between(stem(word), other), errors_between(word, other)) for other in likely}
    near = [other for other in likely if errors[other] <= MAX_ERRORS]
    return sorted(near, key=lambda other: errors[other])[:MAX_GUESSES]
