"""Scores of words and of meaning become one."""

from __future__ import annotations

import pytest

from app.knowledge.fusion import MEANING_WEIGHT, fuse


def test_what_both_sides_have_comes_first() -> None:
    assert list(fuse({"a": 0.5, "b": 0.4}, {"c": 0.6, "b": 0.5}, limit=9)) == ["b", "c", "a"]
    assert list(fuse({"a": 0.5, "b": 0.4}, {"c": 0.6, "b": 0.5}, limit=1)) == ["b"]


def test_the_best_of_both_has_the_mean_of_its_scores() -> None:
    assert fuse({"a": 0.5}, {"a": 0.8}, limit=9) == {
        "a": pytest.approx(0.5 * (1 - MEANING_WEIGHT) + 0.8 * MEANING_WEIGHT)
    }
    assert fuse({"a": 0.5, "b": 0.4}, {"a": 0.2}, limit=9)["a"] < fuse({"a": 0.5, "b": 0.4}, {"a": 0.6}, limit=9)["a"]


def test_one_side_alone_keeps_its_scores() -> None:
    assert fuse({"a": 0.5, "b": 0.25}, {}, limit=9) == {"a": 0.5, "b": 0.25}
    assert fuse({}, {"a": 0.5, "b": 0.25}, limit=9) == {"a": 0.5, "b": 0.25}
    assert fuse({}, {}, limit=9) == {}


def test_what_means_the_opposite_counts_as_nothing() -> None:
    assert fuse({"a": 0.5}, {"a": -0.3}, limit=9) == {"a": 0.5}
    assert fuse({}, {"a": -0.3}, limit=9) == {}
