"""Work that each user has one of at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from app.errors import TooManyRequests

Item = TypeVar("Item")

_RETRY_AFTER_SECONDS = 5


class ExclusivePerUser:
    """Refuses a second one. Of one event loop.

    Args:
        sentence: why.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._busy: dict[str, asyncio.Event] = {}  # set when the work has ended

    def require_none(self, user_id: str) -> None:
        """Raises:
        TooManyRequests: the user has one.
        """
        if user_id in self._busy:
            raise TooManyRequests(self._sentence, _RETRY_AFTER_SECONDS)

    @contextmanager
    def during(self, user_id: str) -> Iterator[None]:
        """Around the work. Raises as :meth:`require_none`."""
        self.require_none(user_id)
        ended = self._busy[user_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[user_id]
            ended.set()

    async def around(self, user_id: str, items: AsyncIterator[Item]) -> AsyncGenerator[Item]:
        """The same items, which are the work; it begins with the first, once the work under way has ended."""
        while (under_way := self._busy.get(user_id)) is not None:
            await under_way.wait()
        with self.during(user_id):
            async for item in items:
                yield item
