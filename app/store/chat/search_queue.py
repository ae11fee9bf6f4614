"""Who searches when: so that searches never have all the threads that read for everybody."""

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
    """Runs one search of each user at a time, and two of all. Of one event loop."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(MAX_AT_ONCE)
        self._locks: dict[str, asyncio.Lock] = {}
        self._here: Counter[str] = Counter()

    @asynccontextmanager
    async def slot(self, user_id: str) -> AsyncIterator[None]:
        """Around a search.

        Raises (on entering):
            TooManyRequests: so many of the user's wait already that this one would wait for long.
        """
        if self._here[user_id] > MAX_WAITING_PER_USER:
            raise TooManyRequests(
                "Several searches of yours are under way already. Wait for them to end.", _RETRY_AFTER_SECONDS
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
