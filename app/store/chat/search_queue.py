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
    """Runs one search per user at a time and ``MAX_AT_ONCE`` overall. Belongs to one event loop."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(MAX_AT_ONCE)
        self._locks: dict[str, asyncio.Lock] = {}
        self._here: Counter[str] = Counter()

    @asynccontextmanager
    async def slot(self, user_id: str) -> AsyncIterator[None]:
        """Wraps a search.

        Raises (on entering):
            TooManyRequests: ``MAX_WAITING_PER_USER`` of the user's searches are waiting already.
        """
        if self._here[user_id] > MAX_WAITING_PER_USER:
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
