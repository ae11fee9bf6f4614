"""Merges the scores of a search by words and of one by meaning."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

MEANING_WEIGHT = 0.6
"""Share of a score that the meaning has, where both sides find something."""


def fuse(words: Mapping[str, float], meaning: Mapping[str, float], *, limit: int) -> dict[str, float]:
    """Returns the best keys of both with their scores, 0 to 1.

    Each side is divided by its best score, and the two are added by their weights: reciprocal ranks, which leave out
    how much better one is than the next, found fewer of the answers. Source: S. Bruch, S. Gai and A. Ingber, An
    Analysis of Fusion Functions for Hybrid Retrieval, 2023. The sums are scaled so that a key that is best on both
    sides has the score that it has on the side which is surer: those of two searches can be compared.

    Args:
        words: scores from 0 to 1; a key that is missing has 0.
        meaning: cosines; below 0 they are 0.
    """
    best_words, best_meaning = max(words.values(), default=0.0), max(meaning.values(), default=0.0)
    scale = max(best_words, best_meaning)
    if scale <= 0:
        return {}
    share = 0.0 if best_meaning <= 0 else MEANING_WEIGHT if best_words else 1.0

    def score(key: str) -> float:
        by_words = (1 - share) * words.get(key, 0.0) / best_words if best_words else 0.0
        return by_words + (share * max(0.0, meaning.get(key, 0.0)) / best_meaning if share else 0.0)

    scores = {key: scale * score(key) for key in words.keys() | meaning.keys()}
    return dict(heapq.nlargest(limit, scores.items(), key=lambda one: (one[1], one[0])))
