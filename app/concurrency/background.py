"""Tasks that run beside the requests for as long as the process does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """Starts them, says when one fails, and ends them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run ``work`` until it ends or :meth:`close` cancels it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancel what still runs and wait for it. A second time, nothing happens."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("%s failed and does not run any more", task.get_name(), exc_info=failure)
