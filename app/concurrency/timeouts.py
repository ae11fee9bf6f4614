"""Timeouts that do not count the time in which the machine stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_POLL_SECONDS = 0.1


async def wait_with_timeout(seconds: float, tasks: Iterable[asyncio.Task[Any]]) -> float:
    """Waits until the tasks are done, for at most ``seconds``; returns the seconds left, 0 after a timeout.

    While the machine stalls (it is overloaded, or the process is stopped) no task makes progress, so that time does
    not count: each poll is charged its nominal length at most, whatever the clock says.
    """
    loop, pending = asyncio.get_running_loop(), set(tasks)
    while pending:
        began, step = loop.time(), min(seconds, _POLL_SECONDS)
        _, pending = await asyncio.wait(pending, timeout=step)
        seconds -= min(loop.time() - began, step)
        if seconds <= 0:
            return 0.0
    return seconds
