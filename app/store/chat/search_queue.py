"""Limits concurrent searches, so that they never occupy all the threads that read for all users."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.errors import TooManyRequests

MAX_AT_ONCE = 2
MAX_WAITING_PER_USER = 8
_RETRY_AFTER_SECONDS = 5


class SearchQueue:
    """Runs one search per user at a time and ``MAX_AT_ONCE`` overall. Belongs to one event loop.

    Args:
        min_waiting: as many searches of one user may wait, if they are more than :data:`MAX_WAITING_PER_USER`.
    """

    def __init__(self, min_waiting: int = 0) -> None:
        self._min_waiting = min_waiting
        self._all = asyncio.Semaphore(MAX_AT_ONCE)
        self._locks: dict[str, asyncio.Lock] = {}
        self._here: Counter[str] = Counter()

    @asynccontextmanager
    async def slot(self, user_id: str) -> AsyncIterator[None]:
        """Wraps a search.

        Raises (on entering):
            TooManyRequests: as many of the user's searches are waiting as may.
        """
        if self._here[user_id] > max(MAX_WAITING_PER_USER, self._min_waiting):
            raise TooManyRequests(
                "Several searches of yours are running already. Wait until they have finished.", _RETRY_AFTER_SECONDS
            )
        self._here[user_id] += 1
        try:
            async with self._locks.setdefault(user_id, asyncio.Lock()), self._all:
                yield
        finally:
            self._here[user_id] -= 1
            if not self._here[user_id]:
                del self._here[user_id]
                del self._locks[user_id]
