"""Long work for an event loop that must stay free to end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_PROCESSORS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()

CANCEL_TIMEOUT_SECONDS = 2.0
"""How long a cancelled caller waits for the work to notice."""


async def run_in_daemon_thread(work: Callable[[], T], *, cancel: Callable[[], None] | None = None) -> T:
    """Like ``asyncio.to_thread``, for work that may take minutes.

    The thread is a daemon of its own: a program can end without it, which it could not with the loop's own pool
    of threads. It has all processors that the program began with, and so has what it starts, however few are left to
    the caller. A caller that is cancelled calls ``cancel`` and waits a few seconds for the work to end; without
    ``cancel`` the work goes on to its end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        if _PROCESSORS:
            with suppress(OSError):  # some were taken from the program since
                os.sched_setaffinity(0, _PROCESSORS)
        try:
            result = work()
        except BaseException as error:
            _tell(done.set_exception, error)
        else:
            _tell(done.set_result, result)

    def _tell(tell: Callable[..., None], outcome: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if done.done() else tell(outcome))

    threading.Thread(target=run, name="deskmate-life", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
            await asyncio.wait({done}, timeout=CANCEL_TIMEOUT_SECONDS)
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
