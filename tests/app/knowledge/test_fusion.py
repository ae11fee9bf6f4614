"""Reciprocal rank fusion."""

from __future__ import annotations

import pytest

from app.domain.knowledge import Passage
from app.knowledge.fusion import fuse, fuse_passages


def test_what_both_rankings_have_comes_first() -> None:
    assert [key for key, _ in fuse("abc", "dcb", limit=9)] == ["b", "c", "a", "d"]


def test_the_score_is_the_sum_of_reciprocal_ranks() -> None:
    scores = dict(fuse("ab", "b", limit=2))
    assert scores == {"b": pytest.approx(1 / 62 + 1 / 61), "a": pytest.approx(1 / 61)}


def test_one_ranking_keeps_its_order_and_its_first_mentions() -> None:
    assert [key for key, _ in fuse("abacb", "", limit=2)] == ["a", "b"]
    assert fuse(limit=3) == []


def passage(document_id: str, start: int, score: float) -> Passage:
    return Passage(
        document_id=document_id, version=1, title="t", heading="", text="x", start=start, end=start + 1, score=score
    )


def test_passages_are_merged_by_their_place_and_carry_the_fused_score() -> None:
    by_words = [passage("a", 0, 17.5), passage("b", 0, 3.0)]
    by_meaning = [passage("a", 5, 0.9), passage("b", 0, 0.8), passage("a", 0, 0.1)]
    fused = fuse_passages(by_words, by_meaning, limit=2)
    assert [(one.document_id, one.start) for one in fused] == [("a", 0), ("b", 0)]
    assert [one.score for one in fused] == [pytest.approx(1 / 61 + 1 / 63), pytest.approx(2 / 62)]
