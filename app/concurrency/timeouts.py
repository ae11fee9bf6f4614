"""Waiting for so long at most, on a machine that may stand still."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_POLL_SECONDS = 0.1


async def wait_with_timeout(seconds: float, tasks: Iterable[asyncio.Task[Any]]) -> float:
    """Wait until the tasks are done, for so many seconds at most; returns how many were left.

    A machine that stands still (it is overloaded, or the process is stopped) gives nobody time to do anything, so that
    does not count: whatever a clock says, a step takes as long as it should.
    """
    loop, pending = asyncio.get_running_loop(), set(tasks)
    while pending:
        began, step = loop.time(), min(seconds, _POLL_SECONDS)
        _, pending = await asyncio.wait(pending, timeout=step)
        seconds -= min(loop.time() - began, step)
        if seconds <= 0:
            return 0.0
    return seconds
