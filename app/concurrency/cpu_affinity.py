"""CPU affinity and priority: on a machine with two CPUs, keeps one free for the engine's thread.

All threads but the engine's share the GIL anyway. If the system spreads them over both CPUs, the engine's thread keeps
waiting for one, even while the other is idle (``/proc/PID/task/TID/schedstat`` counts that while
``benchmarks.product`` runs). Other programs, such as PostgreSQL, drive it to the CPU of the page's thread, where
its priority is the higher one. More CPUs need neither, and one CPU leaves no choice: nothing is done then.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from weakref import WeakSet

_ALLOWED_CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
_HAS_TWO_CPUS = len(_ALLOWED_CPUS) == 2

#: ``nice`` value of the thread that serves the page: if both are busy, the engine's gets 2.4 times its CPU time.
#: A thread can never raise its priority again, but the engine's are started by one that has kept its own.
SERVING_NICENESS = 4
#: As low, for a thread that mostly waits for another server and needs a little CPU time at once after each answer.
WAITING_NICENESS = 4
#: The thread that serves the page gets four times the CPU time of such a thread.
WORKING_NICENESS = 10

_lock = threading.Lock()
_followers: WeakSet[threading.Thread] = WeakSet()
_is_pinned = False


def give_way_to_engine() -> None:
    """Pins to the first CPU the calling thread, those that called :func:`follow_pinning`, and what they start later.

    The calling thread's priority is lowered, too, and so is that of what it starts later.
    """
    global _is_pinned
    if _HAS_TWO_CPUS:
        with _lock:
            _is_pinned = True
            for thread in {threading.current_thread(), *_followers}:
                _pin(thread)
        _lower_priority(SERVING_NICENESS)


def follow_pinning() -> None:
    """Lets :func:`give_way_to_engine` pin the calling thread, too; at once, if it has been called before.

    Whether anything is pinned depends on the engine's device, which is known long after the first threads have started.
    """
    if _HAS_TWO_CPUS:
        with _lock:
            _followers.add(threading.current_thread())
            if _is_pinned:
                _pin(threading.current_thread())


def become_background_thread(niceness: int = WORKING_NICENESS) -> None:
    """As :func:`follow_pinning`, and lowers the thread's priority: the engine's thread goes first on its CPU."""
    follow_pinning()
    if _HAS_TWO_CPUS:
        _lower_priority(niceness)


def _lower_priority(niceness: int) -> None:
    thread = threading.get_native_id()
    lowered = max(os.getpriority(os.PRIO_PROCESS, thread), niceness)  # the whole program may run at a lower one
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, lowered)


def _pin(thread: threading.Thread) -> None:
    if thread.is_alive() and thread.native_id is not None:
        with suppress(OSError):  # only an optimisation, and a container may forbid it
            os.sched_setaffinity(thread.native_id, _ALLOWED_CPUS[:1])
