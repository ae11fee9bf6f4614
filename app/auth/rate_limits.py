"""Sliding-window rate limits for sign-ins, links and messages."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import TooManyRequests

_MIN_SWEEP_SIZE = 1000
"""Number of keys below which expired ones are not swept."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``count`` hits per key within ``seconds``."""

    count: int
    seconds: int
    name: str  #: keeps equal limits of different purposes apart


#: An office may share one address, and users mistype: neither is locked out for long.
SIGN_INS_BY_ADDRESS = (RateLimit(10, 20, "address"), RateLimit(60, 300, "address"))
SIGN_INS_BY_ACCOUNT = (RateLimit(20, 300, "account"),)
LINKS_BY_ADDRESS = (RateLimit(20, 60, "link"),)
#: Each sign-in counts twice: where it starts and where it ends.
OIDC_BY_ADDRESS = (RateLimit(60, 60, "oidc"),)


class RateLimiter:
    """Counts hits in this process's memory; each server process counts on its own.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hits: dict[tuple[RateLimit, str], deque[float]] = {}  # times of the hits, oldest first
        self._sweep_at = _MIN_SWEEP_SIZE

    def hit(self, rates: tuple[RateLimit, ...], key: str, sentence: str, attempts: int = 1) -> None:
        """Counts attempts of ``key`` against all ``rates``, all of them or none.

        Args:
            sentence: the error's message, to which the time to wait is added.
            attempts: how many, at most as many as each rate allows.

        Raises:
            TooManyRequests: a limit is exceeded; nothing is counted.
        """
        now = self._clock()
        counted = [(rate, self._recent(rate, key, now)) for rate in rates]
        waits = [
            tries[len(tries) + attempts - rate.count - 1] + rate.seconds - now
            for rate, tries in counted
            if len(tries) + attempts > rate.count
        ]
        if waits:
            raise too_many_requests(sentence, max(1, math.ceil(max(waits))))
        for _, tries in counted:
            tries.extend([now] * attempts)

    def reset(self, rates: tuple[RateLimit, ...], key: str) -> None:
        """Forgets the attempts of ``key``, after a successful one."""
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
        """Drops keys whose hits have all expired; runs again when the number of keys has doubled."""
        for key, tries in list(self._hits.items()):
            if not tries or tries[-1] + key[0].seconds <= now:
                del self._hits[key]
        self._sweep_at = max(_MIN_SWEEP_SIZE, 2 * len(self._hits))


def too_many_requests(sentence: str, seconds: int) -> TooManyRequests:
    """Returns the error, with the time to wait added to its sentence."""
    when = f"{seconds} second{'' if seconds == 1 else 's'}" if seconds < 120 else f"{math.ceil(seconds / 60)} minutes"
    return TooManyRequests(f"{sentence} Try again in {when}.", seconds)
