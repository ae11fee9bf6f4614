"""Describes the machine and versions of a measurement, and the CPU load from other processes."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

EXTENSIONS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")


def describe() -> dict[str, object]:
    """Returns date, CPU, cores, memory in GiB and versions, ready for JSON."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cpu_extensions": _cpu_extensions(),
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


def _cpu_extensions() -> list[str]:
    """Returns the instruction sets that decide how fast the CPU multiplies low-precision numbers."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            have = set(line.split())
            return [name for name in EXTENSIONS if name in have]
    return []


@dataclass(frozen=True)
class CpuMark:
    """A point in time from which the CPU use of other processes is measured."""

    wall: float
    busy: float
    own: float
    session: int | None = None  #: processes of this session do not count as other processes
    program: str | None = None  #: processes of this program do not count either

    @classmethod
    def now(cls, session: int | None = None, program: str | None = None) -> CpuMark:
        user, nice, system, _idle, _iowait, irq, softirq, steal = _cpu_ticks()
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            wall=perf_counter(),
            busy=(user + nice + system + irq + softirq + steal) / ticks_per_second,
            own=usage.ru_utime + usage.ru_stime + session_seconds(session) + program_seconds(program),
            session=session,
            program=program,
        )

    def others_share(self, ended: float = 0.0) -> float:
        """Returns the share of all cores that other processes used since this mark, 0 to 1.

        Args:
            ended: CPU seconds of own processes that have ended and are in no other count.
        """
        now = CpuMark.now(self.session, self.program)
        others = (now.busy - self.busy) - (now.own - self.own) - ended
        capacity = (now.wall - self.wall) * (os.cpu_count() or 1)
        return max(0.0, others / capacity) if capacity > 0 else 0.0


def session_seconds(session: int | None) -> float:
    """Returns the CPU time of all processes of a session and of their ended children, seconds."""
    return 0.0 if session is None else sum(used for _name, of, used in _processes() if of == session)


def program_seconds(program: str | None) -> float:
    """Returns the same for the processes of a program. Each of PostgreSQL's has a session of its own."""
    return 0.0 if program is None else sum(used for name, _session, used in _processes() if name == program)


def _processes() -> Iterator[tuple[str, int, float]]:
    """Yields each process's name, session, and CPU seconds, those of its ended children included."""
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # the process has just ended
        fields = rest.split()
        yield head.partition("(")[2], int(fields[3]), sum(map(int, fields[11:15])) / ticks_per_second


def resident_bytes(pid: int | str = "self") -> int:
    """Returns a process's resident anonymous memory in bytes, without mapped files. Linux only."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("RssAnon:")).split()[1]) * 1024


def open_files(pid: int | str = "self") -> int:
    """Returns the number of open file descriptors of a process. Linux only."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads_of(pid: int) -> int:
    """Returns the number of threads of a process. Linux only."""
    return len(os.listdir(f"/proc/{pid}/task"))


def _cpu_ticks() -> tuple[float, ...]:
    first = Path("/proc/stat").read_text().splitlines()[0]
    return tuple(float(value) for value in first.split()[1:9])
