"""CPU affinity: on a machine with two CPUs, keeps one free for the engine's thread.

All threads but the engine's share the GIL anyway. If the system spreads them over both CPUs, the engine's thread keeps
waiting for one, even while the other is idle (``/proc/PID/task/TID/schedstat`` counts that while
``benchmarks.product`` runs). More CPUs need no pinning, and one CPU leaves no choice: both functions do nothing then.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_ALLOWED_CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
_HAS_TWO_CPUS = len(_ALLOWED_CPUS) == 2

#: ``nice`` value: the thread that serves the page gets nine times the CPU time of such a thread when both are busy.
_NICENESS = 10


def pin_to_first_cpu() -> None:
    """Pins the calling thread, and the threads it starts from now on, to the first CPU."""
    if _HAS_TWO_CPUS:
        with suppress(OSError):  # only an optimisation, and a container may forbid it
            os.sched_setaffinity(0, _ALLOWED_CPUS[:1])


def lower_thread_priority() -> None:
    """Lowers the calling thread's priority, so that other threads on its CPU run first."""
    if _HAS_TWO_CPUS:
        thread = threading.get_native_id()
        lowered = max(os.getpriority(os.PRIO_PROCESS, thread), _NICENESS)  # the whole program may run at a lower one
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, lowered)
