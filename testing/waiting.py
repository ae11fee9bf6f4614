"""Waiting for what happens elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LoopClock:
    """The clock of the event loop that runs, put forward by the test: nobody waits for what takes long, and however
    slow the machine is, nothing is over before the test says so."""

    def __init__(self) -> None:
        self._ahead = 0.0
        loop = asyncio.get_running_loop()
        time = loop.time
        loop.time = lambda: time() + self._ahead  # type: ignore[method-assign]

    async def advance_until(self, done: Callable[[], bool], seconds: float) -> None:
        """So many seconds pass, again and again, until it holds."""

        def holds() -> bool:
            self._ahead += seconds
            return done()

        await eventually(holds)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds; a busy machine may take its time."""
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")
