"""Reciprocal rank fusion."""

from __future__ import annotations

import pytest

from app.knowledge.fusion import fuse


def test_what_both_rankings_have_comes_first() -> None:
    assert [key for key, _ in fuse("abc", "dcb", limit=9)] == ["b", "c", "a", "d"]


def test_the_score_is_the_sum_of_reciprocal_ranks() -> None:
    scores = dict(fuse("ab", "b", limit=2))
    assert scores == {"b": pytest.approx(1 / 62 + 1 / 61), "a": pytest.approx(1 / 61)}


def test_one_ranking_keeps_its_order_and_its_first_mentions() -> None:
    assert [key for key, _ in fuse("abacb", "", limit=2)] == ["a", "b"]
    assert fuse(limit=3) == []
