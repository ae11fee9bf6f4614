"""Runs long blocking work in a daemon thread, so that neither the event loop nor the process's exit waits for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import TypeVar

T = TypeVar("T")

CANCEL_TIMEOUT_SECONDS = 2.0
"""How long a cancelled caller waits for the work to end; after that it stops waiting."""


async def run_in_daemon_thread(work: Callable[[], T], *, cancel: Callable[[], None] | None = None) -> T:
    """Runs ``work`` like ``asyncio.to_thread``, but fit for work that takes minutes.

    The process can exit without waiting for the daemon thread, which it cannot with the loop's own thread pool. The
    thread, and every thread it starts, has the CPUs and the priority of the first caller in this process, even where
    the caller's are narrower or lower by now. When the caller is cancelled, it calls ``cancel`` and waits up to
    :data:`CANCEL_TIMEOUT_SECONDS` for the work to end; without ``cancel`` the work runs to its end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            resolve(done.set_exception, error)
        else:
            resolve(done.set_result, result)

    def resolve(set_outcome: Callable[..., None], outcome: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: no caller is waiting
            loop.call_soon_threadsafe(lambda: None if done.done() else set_outcome(outcome))

    thread = threading.Thread(target=run, name="deskmate-lifecycle", daemon=True)
    _starter().submit(thread.start).result()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
            await asyncio.wait({done}, timeout=CANCEL_TIMEOUT_SECONDS)
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


@cache
def _starter() -> ThreadPoolExecutor:
    """The thread that starts the others, which begin with its CPUs and its priority.

    The caller has them only at first: the thread that serves the page gives way to the engine's, and on Linux no thread
    may raise its own priority again.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="deskmate-starter")


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_starter.cache_clear)  # a forked process has only the thread that forked it
