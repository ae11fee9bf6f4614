"""On a machine with two processors one is left to the engine, as far as that goes.

All threads but the engine's take turns at Python's lock anyway. Where the system spreads them over both processors, the
engine's thread waits for one again and again, even with the other one idle (``/proc/PID/task/TID/schedstat`` counts
that while ``benchmarks.product`` runs). With more processors there is room, with one no choice.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_ALLOWED_CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
_HAS_TWO_CPUS = len(_ALLOWED_CPUS) == 2

#: As ``nice`` counts: the one that serves the page gets nine times as much where both have something to do.
_NICENESS = 10


def pin_to_first_cpu() -> None:
    """Keep the calling thread, and those that it starts from now on, to one processor."""
    if _HAS_TWO_CPUS:
        with suppress(OSError):  # where it is not allowed, it is not worth an error
            os.sched_setaffinity(0, _ALLOWED_CPUS[:1])


def lower_thread_priority() -> None:
    """Let the calling thread wait while another one on its processor has something to do."""
    if _HAS_TWO_CPUS:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
