"""How often somebody may try."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from limits import RateLimitItem, RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from app.errors import TooManyRequests


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` in ``seconds``, for each of what is counted."""

    count: int
    seconds: int
    name: str  #: tells this rate's counts from others'

    def item(self) -> RateLimitItem:
        return RateLimitItemPerSecond(self.count, self.seconds, namespace=self.name)


#: An office may share one address, and a person may mistype: neither is kept out by these for long.
SIGN_INS_BY_ADDRESS = (Rate(10, 20, "address"), Rate(60, 300, "address"))
SIGN_INS_BY_ACCOUNT = (Rate(20, 300, "account"),)
LINKS_BY_ADDRESS = (Rate(20, 60, "link"),)


class Throttle:
    """Counts in this process's memory: each of several servers counts by itself."""

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def count(self, rates: tuple[Rate, ...], whose: str, sentence: str) -> None:
        """Count one try of ``whose``.

        Args:
            sentence: what is said to who tried too often; when to come back is added.

        Raises:
            TooManyRequests: it is one too many, and is not counted.
        """
        waits = [self._wait(rate, whose) for rate in rates if not self._limiter.hit(rate.item(), whose)]
        if waits:
            raise too_many(sentence, max(waits))

    def forget(self, rates: tuple[Rate, ...], whose: str) -> None:
        """Somebody got in: what they tried before does not count against them."""
        for rate in rates:
            self._limiter.clear(rate.item(), whose)

    def _wait(self, rate: Rate, whose: str) -> int:
        reset = self._limiter.get_window_stats(rate.item(), whose).reset_time
        return max(1, math.ceil(reset - time.time()))


def too_many(sentence: str, seconds: int) -> TooManyRequests:
    """The refusal, with when to come back."""
    when = f"{seconds} second{'' if seconds == 1 else 's'}" if seconds < 120 else f"{math.ceil(seconds / 60)} minutes"
    return TooManyRequests(f"{sentence} Try again in {when}.", seconds)
