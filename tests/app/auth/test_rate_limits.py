"""So many tries within any stretch of time, for each by itself, and nothing kept of those who have gone."""

from __future__ import annotations

import pytest

from app.auth import rate_limits
from app.auth.rate_limits import RateLimit, RateLimiter
from app.errors import TooManyRequests

SHORT, LONG = RateLimit(2, 10, "short"), RateLimit(3, 100, "long")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tries(counting: RateLimiter, whose: str = "ann", rates: tuple[RateLimit, ...] = (SHORT, LONG)) -> int | None:
    """One try: None where it is let through, otherwise in how many seconds it would be."""
    try:
        counting.hit(rates, whose, "Too often.")
    except TooManyRequests as refused:
        return refused.retry_after
    return None


def test_the_window_moves_and_who_is_refused_is_not_counted(clock: Clock) -> None:
    counting = RateLimiter(clock)
    assert tries(counting) is None
    clock.now += 9
    assert tries(counting) is None
    assert [tries(counting) for _ in range(3)] == [1, 1, 1]  # until the first one is ten seconds ago
    clock.now += 1
    assert tries(counting) is None
    # Three within a hundred seconds; the one above was the third, and the refused ones count in neither window.
    clock.now += 50
    assert tries(counting) == 40
    clock.now += 40
    assert tries(counting) is None


def test_each_counts_by_themselves_until_they_got_in(clock: Clock) -> None:
    counting = RateLimiter(clock)
    assert [tries(counting, "ann"), tries(counting, "ann"), tries(counting, "ann")] == [None, None, 10]
    assert tries(counting, "bob") is None
    assert tries(counting, "ann", (RateLimit(2, 10, "another"),)) is None
    counting.reset((SHORT, LONG), "ann")
    counting.reset((SHORT, LONG), "nobody")
    assert tries(counting, "ann") is None


def test_those_who_have_gone_are_let_go_of(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_MIN_SWEEP_SIZE", 10)
    counting = RateLimiter(clock)
    for number in range(1000):
        clock.now += 1
        assert tries(counting, f"visitor {number}", (SHORT,)) is None
        assert len(counting._hits) <= 21
    assert tries(counting, "visitor 999", (SHORT,)) is None
    assert tries(counting, "visitor 999", (SHORT,)) == 10  # those of now are remembered
