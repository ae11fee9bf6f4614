"""What a figure was measured on: the machine, the versions, and how busy others kept it meanwhile."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter


def describe() -> dict[str, object]:
    """Date, processor, cores, memory in GiB and versions, ready for JSON."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class CpuMark:
    """A moment to measure from: how much of the machine's CPU others have used since."""

    wall: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> CpuMark:
        user, nice, system, _idle, _iowait, irq, softirq, steal = _cpu_ticks()
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            wall=perf_counter(),
            busy=(user + nice + system + irq + softirq + steal) / ticks_per_second,
            own=usage.ru_utime + usage.ru_stime,
        )

    def others_share(self) -> float:
        """Share of all cores that other processes used since this mark, 0 to 1."""
        now = CpuMark.now()
        others = (now.busy - self.busy) - (now.own - self.own)
        capacity = (now.wall - self.wall) * (os.cpu_count() or 1)
        return max(0.0, others / capacity) if capacity > 0 else 0.0


def _cpu_ticks() -> tuple[float, ...]:
    first = Path("/proc/stat").read_text().splitlines()[0]
    return tuple(float(value) for value in first.split()[1:9])
