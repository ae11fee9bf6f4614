"""Runs long blocking work in a daemon thread, so that neither the event loop nor the process's exit waits for it."""

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
"""How long a cancelled caller waits for the work to end; after that it stops waiting."""


async def run_in_daemon_thread(work: Callable[[], T], *, cancel: Callable[[], None] | None = None) -> T:
    """Runs ``work`` like ``asyncio.to_thread``, but fit for work that takes minutes.

    The process can exit without waiting for the daemon thread, which it cannot with the loop's own thread pool. The
    thread, and every thread it starts, may use all CPUs that the process had at import, even where the caller's CPU
    affinity is narrower. When the caller is cancelled, it calls ``cancel`` and waits up to
    :data:`CANCEL_TIMEOUT_SECONDS` for the work to end; without ``cancel`` the work runs to its end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        if _PROCESSORS:
            with suppress(OSError):  # the process may have lost some CPUs since
                os.sched_setaffinity(0, _PROCESSORS)
        try:
            result = work()
        except BaseException as error:
            resolve(done.set_exception, error)
        else:
            resolve(done.set_result, result)

    def resolve(set_outcome: Callable[..., None], outcome: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: no caller is waiting
            loop.call_soon_threadsafe(lambda: None if done.done() else set_outcome(outcome))

    threading.Thread(target=run, name="deskmate-lifecycle", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
            await asyncio.wait({done}, timeout=CANCEL_TIMEOUT_SECONDS)
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
