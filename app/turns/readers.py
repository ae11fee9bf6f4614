"""Reading replies without waiting at each of them: who follows many is told of changes, and takes what is new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

from app.turns.events import TurnEvent

ChangeCallback = Callable[[bool], None]
"""Called when there is something new to take, with whether the reply has ended. Takes nothing itself."""


class TurnReader(Protocol):
    """One reader of one reply."""

    ended: bool  #: nothing comes any more

    def take(self) -> list[TurnEvent]:
        """What is new, all text in one piece; empty where nothing is.

        Raises:
            NotFound: the turn is missing, deleted, or another user's. The reader has ended.
            StorageUnavailable: the database does not work.
        """
        ...

    async def close(self) -> None:
        """Read no more."""
        ...


class PrefetchingReader:
    """A reader of events that are waited for elsewhere. The next one is asked for when the last one was taken."""

    def __init__(self, events: AsyncIterator[TurnEvent], changed: ChangeCallback) -> None:
        self.ended = False
        self._events = events
        self._changed = changed
        self._asked = self._ask()

    def take(self) -> list[TurnEvent]:
        if not self._asked.done():
            return []
        try:
            event = self._asked.result()
        except BaseException:
            self.ended = True
            raise
        if event is None:  # the one before was the last
            self.ended = True
            return []
        self._asked = self._ask()
        return [event]

    async def close(self) -> None:
        self._asked.cancel()
        await asyncio.gather(self._asked, return_exceptions=True)
        if isinstance(self._events, AsyncGenerator):
            await self._events.aclose()

    def _ask(self) -> asyncio.Task[TurnEvent | None]:
        asked = asyncio.create_task(self._next())
        asked.add_done_callback(lambda _: self._changed(True))
        return asked

    async def _next(self) -> TurnEvent | None:
        return await anext(self._events, None)
