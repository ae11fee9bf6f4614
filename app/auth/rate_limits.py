"""How often somebody may try."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import TooManyRequests

_MIN_SWEEP_SIZE = 1000
"""Of those who have tried, that it is not worth looking for some to let go of."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``count`` in ``seconds``, for each of what is counted."""

    count: int
    seconds: int
    name: str  #: tells this rate's counts from others'


#: An office may share one address, and a person may mistype: neither is kept out by these for long.
SIGN_INS_BY_ADDRESS = (RateLimit(10, 20, "address"), RateLimit(60, 300, "address"))
SIGN_INS_BY_ACCOUNT = (RateLimit(20, 300, "account"),)
LINKS_BY_ADDRESS = (RateLimit(20, 60, "link"),)


class RateLimiter:
    """Counts in this process's memory: each of several servers counts by itself.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hits: dict[tuple[RateLimit, str], deque[float]] = {}  # when, oldest first
        self._sweep_at = _MIN_SWEEP_SIZE

    def hit(self, rates: tuple[RateLimit, ...], key: str, sentence: str) -> None:
        """Count one try of ``key``.

        Args:
            sentence: what is said to who tried too often; when to come back is added.

        Raises:
            TooManyRequests: it is one too many, and is not counted.
        """
        now = self._clock()
        counted = [(rate, self._recent(rate, key, now)) for rate in rates]
        waits = [tries[0] + rate.seconds - now for rate, tries in counted if len(tries) >= rate.count]
        if waits:
            raise too_many_requests(sentence, max(1, math.ceil(max(waits))))
        for _, tries in counted:
            tries.append(now)

    def reset(self, rates: tuple[RateLimit, ...], key: str) -> None:
        """Somebody got in: what they tried before does not count against them."""
        for rate in rates:
            self._hits.pop((rate, key), None)

    def _recent(self, rate: RateLimit, key: str, now: float) -> deque[float]:
        if len(self._hits) >= self._sweep_at:
            self._sweep(now)
        tries = self._hits.setdefault((rate, key), deque())
        while tries and tries[0] + rate.seconds <= now:
            tries.popleft()
        return tries

    def _sweep(self, now: float) -> None:
        """Let go of those who have not tried for long, as often as there are twice as many."""
        for key, tries in list(self._hits.items()):
            if not tries or tries[-1] + key[0].seconds <= now:
                del self._hits[key]
        self._sweep_at = max(_MIN_SWEEP_SIZE, 2 * len(self._hits))


def too_many_requests(sentence: str, seconds: int) -> TooManyRequests:
    """The refusal, with when to come back."""
    when = f"{seconds} second{'' if seconds == 1 else 's'}" if seconds < 120 else f"{math.ceil(seconds / 60)} minutes"
    return TooManyRequests(f"{sentence} Try again in {when}.", seconds)
