"""Merges the scores of a search by words and of one by meaning."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

MEANING_WEIGHT = 0.7
"""Share of a score that the meaning has, where both sides find something. Tuned without synonyms, whose author had read
the questions of the tuning half: with them, words seem to be worth more than they are for other questions."""
WORDS_POWER = 2
"""Sharpens the differences between the scores by words, of which many are near the best."""


def fuse(words: Mapping[str, float], meaning: Mapping[str, float], *, limit: int) -> dict[str, float]:
    """Returns the best keys of both with their scores, 0 to 1.

    Each side is divided by its best score, and the two are added by their weights: reciprocal ranks, which leave out
    how much better one is than the next, found fewer of the answers. Source: S. Bruch, S. Gai and A. Ingber, An
    Analysis of Fusion Functions for Hybrid Retrieval, 2023. The sums are scaled so that a key that is best on both
    sides has the mean of its scores, by the same weights: those of two searches can be compared.

    Args:
        words: scores from 0 to 1; a key that is missing has 0.
        meaning: cosines; below 0 they are 0.
    """
    best_words, best_meaning = max(words.values(), default=0.0), max(meaning.values(), default=0.0)
    if best_meaning <= 0:
        return _best(words, limit)
    share = MEANING_WEIGHT if best_words else 1.0
    scale = (1 - share) * best_words + share * best_meaning

    def score(key: str) -> float:
        by_words = (words.get(key, 0.0) / best_words) ** WORDS_POWER if best_words else 0.0
        by_meaning = max(0.0, meaning.get(key, 0.0)) / best_meaning
        return scale * ((1 - share) * by_words + share * by_meaning)

    return _best({key: score(key) for key in words.keys() | meaning.keys()}, limit)


def _best(scores: Mapping[str, float], limit: int) -> dict[str, float]:
    return dict(heapq.nlargest(limit, scores.items(), key=lambda one: (one[1], one[0])))
