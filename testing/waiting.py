"""Waits for conditions in asynchronous tests, with a clock that tests can advance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LoopClock:
    """Advances the running event loop's clock, so that tests do not sleep through long delays.

    Long delays do not expire by themselves on a slow machine either: only the test makes the time pass.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        loop = asyncio.get_running_loop()
        time = loop.time
        loop.time = lambda: time() + self._ahead  # type: ignore[method-assign]

    async def advance_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Advances the clock by ``seconds`` repeatedly until ``done()`` is true."""

        def holds() -> bool:
            self._ahead += seconds
            return done()

        await eventually(holds)


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds, at least 30 seconds for a busy machine.

    Raises:
        AssertionError: it never held.
    """
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")
