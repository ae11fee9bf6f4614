"""Merges rankings whose scores cannot be compared, such as those of full text and of vectors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

from app.domain.knowledge import Passage

Key = TypeVar("Key", bound=Hashable)

RANK_OFFSET = 60
"""Constant k of reciprocal rank fusion: the larger it is, the less the first ranks count. 60 is the paper's."""


def fuse(*rankings: Sequence[Key], limit: int) -> list[tuple[Key, float]]:
    """Returns the best keys of all rankings with their scores, best first, by reciprocal rank fusion.

    A key's score is the sum of 1 / (k + rank) over the rankings that have it. Equal scores keep the order in which the
    rankings name them. Source: Cormack, Clarke and Büttcher, Reciprocal Rank Fusion Outperforms Condorcet and
    Individual Rank Learning Methods, SIGIR 2009.

    Args:
        rankings: keys, best first; a key that a ranking repeats counts where it comes first.
    """
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(dict.fromkeys(ranking), start=1):
            scores[key] = scores.get(key, 0.0) + 1 / (RANK_OFFSET + rank)
    return sorted(scores.items(), key=lambda one: -one[1])[:limit]


def fuse_passages(*rankings: Sequence[Passage], limit: int) -> list[Passage]:
    """Returns the best passages of all rankings, best first, with their fused scores; each place in a text once."""
    found = {_place(passage): passage for ranking in rankings for passage in ranking}
    places = fuse(*([_place(passage) for passage in ranking] for ranking in rankings), limit=limit)
    return [replace(found[place], score=score) for place, score in places]


def _place(passage: Passage) -> tuple[str, int, int, int]:
    return passage.document_id, passage.version, passage.start, passage.end
