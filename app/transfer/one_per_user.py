"""Limits each user to one task of a kind at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from app.errors import TooManyRequests

Item = TypeVar("Item")

_RETRY_AFTER_SECONDS = 5


class ExclusivePerUser:
    """Refuses a user's second concurrent task. Belongs to one event loop.

    Args:
        sentence: the error text.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._busy: dict[str, asyncio.Event] = {}  # set when the work has ended

    def require_none(self, user_id: str) -> None:
        """Checks that the user has no task running.

        Raises:
            TooManyRequests: there is one.
        """
        if user_id in self._busy:
            raise TooManyRequests(self._sentence, _RETRY_AFTER_SECONDS)

    @contextmanager
    def during(self, user_id: str) -> Iterator[None]:
        """Wraps the task. Raises as :meth:`require_none`."""
        self.require_none(user_id)
        ended = self._busy[user_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[user_id]
            ended.set()

    async def around(self, user_id: str, items: AsyncIterator[Item]) -> AsyncGenerator[Item]:
        """Yields the same items; iterating them is the task, which waits for a running one before its first item."""
        while (under_way := self._busy.get(user_id)) is not None:
            await under_way.wait()
        with self.during(user_id):
            async for item in items:
                yield item
