"""How often somebody may try."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import TooManyRequests

_FEW = 1000
"""Of those who have tried, that it is not worth looking for some to let go of."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` in ``seconds``, for each of what is counted."""

    count: int
    seconds: int
    name: str  #: tells this rate's counts from others'


#: An office may share one address, and a person may mistype: neither is kept out by these for long.
SIGN_INS_BY_ADDRESS = (Rate(10, 20, "address"), Rate(60, 300, "address"))
SIGN_INS_BY_ACCOUNT = (Rate(20, 300, "account"),)
LINKS_BY_ADDRESS = (Rate(20, 60, "link"),)


class Throttle:
    """Counts in this process's memory: each of several servers counts by itself.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tries: dict[tuple[Rate, str], deque[float]] = {}  # when, oldest first
        self._sweep_at = _FEW

    def count(self, rates: tuple[Rate, ...], whose: str, sentence: str) -> None:
        """Count one try of ``whose``.

        Args:
            sentence: what is said to who tried too often; when to come back is added.

        Raises:
            TooManyRequests: it is one too many, and is not counted.
        """
        now = self._clock()
        counted = [(rate, self._recent(rate, whose, now)) for rate in rates]
        waits = [tries[0] + rate.seconds - now for rate, tries in counted if len(tries) >= rate.count]
        if waits:
            raise too_many(sentence, max(1, math.ceil(max(waits))))
        for _, tries in counted:
            tries.append(now)

    def forget(self, rates: tuple[Rate, ...], whose: str) -> None:
        """Somebody got in: what they tried before does not count against them."""
        for rate in rates:
            self._tries.pop((rate, whose), None)

    def _recent(self, rate: Rate, whose: str, now: float) -> deque[float]:
        if len(self._tries) >= self._sweep_at:
            self._sweep(now)
        tries = self._tries.setdefault((rate, whose), deque())
        while tries and tries[0] + rate.seconds <= now:
            tries.popleft()
        return tries

    def _sweep(self, now: float) -> None:
        """Let go of those who have not tried for long, as often as there are twice as many."""
        for key, tries in list(self._tries.items()):
            if not tries or tries[-1] + key[0].seconds <= now:
                del self._tries[key]
        self._sweep_at = max(_FEW, 2 * len(self._tries))


def too_many(sentence: str, seconds: int) -> TooManyRequests:
    """The refusal, with when to come back."""
    when = f"{seconds} second{'' if seconds == 1 else 's'}" if seconds < 120 else f"{math.ceil(seconds / 60)} minutes"
    return TooManyRequests(f"{sentence} Try again in {when}.", seconds)
