"""The replies that this process is writing: registered before their turns are in the database, until they are saved."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from app.concurrency.timeouts import wait_with_timeout
from app.domain.views import MessageStatus
from app.errors import Conflict
from app.store.chat.turn_contexts import BUSY
from app.turns.live import LiveTurn

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

LAST_WRITE_SECONDS = 5.0  # for last writes on shutdown


class LiveTurns:
    """The replies in flight and the tasks that write them. Belongs to one event loop."""

    def __init__(self) -> None:
        self.by_id: dict[str, LiveTurn] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._writing: Counter[str] = Counter()  # running replies by user id

    def count(self, user_id: str) -> int:
        """How many of the user's replies are being written."""
        return self._writing[user_id]

    def find(self, user_id: str, turn_id: str) -> LiveTurn | None:
        """The user's reply; None if it is not being written here, or is another user's."""
        live = self.by_id.get(turn_id)
        return live if live is not None and live.user_id == user_id else None

    def within(self, conversation_ids: Collection[str]) -> list[LiveTurn]:
        """The replies that are being written in these conversations."""
        return [live for live in self.by_id.values() if live.ref.conversation_id in conversation_ids]

    async def begin(self, lives: Sequence[LiveTurn], write: Callable[[], Awaitable[Result]]) -> Result:
        """Registers turns of one conversation, starts their generation and writes their beginning meanwhile.

        The first text need not wait for the disk. If writing fails, the turns are forgotten. Returns what ``write``
        returns.

        Raises:
            Conflict: one of them is being written already.
        """
        if any(live.ref.turn_id in self.by_id for live in lives):
            raise Conflict(BUSY)
        # Registered before they are written: a reader that sees a turn in the database finds it here.
        for live in lives:
            self.by_id[live.ref.turn_id] = live
            self._writing[live.user_id] += 1
            live.start_generation()
        try:
            return await write()
        except BaseException:
            for live in lives:
                live.abandon()
                self._forget(live)
            raise

    def launch(self, live: LiveTurn) -> asyncio.Task[None]:
        """Starts the task that saves a turn whose beginning is written. It is forgotten once the task ends."""
        task = live.launch()
        self.tasks.add(task)
        task.add_done_callback(lambda task: self._ended(live, task))
        return task

    async def close(self, timeout_s: float) -> None:
        """Gives the replies ``timeout_s`` to end, then ends them as interrupted."""
        if self.tasks:
            await wait_with_timeout(timeout_s, self.tasks)
        for live in self.by_id.values():
            live.stop(MessageStatus.INTERRUPTED)
        if self.tasks:
            await wait_with_timeout(LAST_WRITE_SECONDS, self.tasks)
        for task in self.tasks:
            _log.error("%s could not be saved before the shutdown", task.get_name())
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _ended(self, live: LiveTurn, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._forget(live)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=failure)

    def _forget(self, live: LiveTurn) -> None:
        del self.by_id[live.ref.turn_id]
        self._writing[live.user_id] -= 1
        if not self._writing[live.user_id]:
            del self._writing[live.user_id]
