"""Words near a misspelt one."""

from __future__ import annotations

import pytest

from app.store.knowledge.spelling import errors_between, one_error_away


@pytest.mark.parametrize("wrong", ["refnd", "reefund", "rufund", "erfund", "refundd"])
def test_one_error_is_undone(wrong: str) -> None:
    assert "refund" in set(one_error_away(wrong))
    assert errors_between(wrong, "refund") == 1


def test_two_errors_are_not_one() -> None:
    assert "refund" not in set(one_error_away("rfnd"))
    assert errors_between("calender", "calendars") == 2
    assert errors_between("refund", "refund") == 0


def test_more_errors_are_not_counted() -> None:
    assert errors_between("refund", "shipping") == errors_between("a", "abcdef") == 3
