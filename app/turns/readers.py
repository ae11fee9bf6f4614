"""Readers of replies that never block: a caller that follows many replies is notified of changes and polls them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from app.turns.events import TurnEvent

ChangeCallback = Callable[[bool], None]
"""Called when there may be new events, with whether the reply has ended. Must not call ``take`` itself."""


class TurnReader(Protocol):
    """One reader of one reply."""

    ended: bool  #: no more events

    def take(self) -> list[TurnEvent]:
        """Returns the new events, all text in one piece; empty if there are none.

        Raises:
            NotFound: the turn is missing, deleted, or another user's. The reader has ended.
            StorageUnavailable: the database is unavailable.
        """
        ...

    async def close(self) -> None:
        """Stops reading."""
        ...


class PrefetchingReader:
    """Makes a reader of an async generator of events: prefetches one event at a time, in a task of its own."""

    def __init__(self, events: AsyncGenerator[TurnEvent], changed: ChangeCallback) -> None:
        self.ended = False
        self._events = events
        self._changed = changed
        self._pending = self._prefetch()

    def take(self) -> list[TurnEvent]:
        if not self._pending.done():
            return []
        try:
            event = self._pending.result()
        except BaseException:
            self.ended = True
            raise
        if event is None:  # the generator is exhausted
            self.ended = True
            return []
        self._pending = self._prefetch()
        return [event]

    async def close(self) -> None:
        self._pending.cancel()
        await asyncio.gather(self._pending, return_exceptions=True)
        await self._events.aclose()

    def _prefetch(self) -> asyncio.Task[TurnEvent | None]:
        pending = asyncio.create_task(self._next())
        pending.add_done_callback(lambda _: self._changed(True))
        return pending

    async def _next(self) -> TurnEvent | None:
        return await anext(self._events, None)
