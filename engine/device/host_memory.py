"""Available memory of the machine, or of the container that limits it. Imports no PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""Where ``/proc`` and ``/sys`` are."""
_NO_LIMIT = 1 << 60
"""Version 1 of control groups says "no limit" with a number near 2^63."""


_reserved: dict[str, int] = {}


def reserve_host_memory(purpose: str, size: int) -> None:
    """Keeps bytes that will be allocated later out of :func:`available_host_memory`; 0 gives them back."""
    _reserved[purpose] = size


def available_host_memory(root: Path = ROOT) -> int:
    """Returns the bytes that can be allocated now without swapping, or evicting what is in use.

    Does not count what :func:`reserve_host_memory` has set aside.

    Pages of files that are in memory count as available, in a container as on the machine: the kernel takes them back.
    """
    free = machine_memory() // 2  # without /proc/meminfo: a guess
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    free = min([free, *(group.limit - group.used for group in _limited_groups(root))])
    return max(free - sum(_reserved.values()), 0)


def machine_memory() -> int:
    """Returns the bytes of memory that the machine has, whatever a container may use of it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def host_memory_limit(root: Path = ROOT) -> int | None:
    """Returns the most bytes that this process's container may use; None if nothing limits it."""
    limits = (group.limit for group in _limited_groups(root) if group.limit < _NO_LIMIT)
    return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class _Group:
    limit: int  #: bytes
    used: int  #: bytes, without the file pages that the kernel can take back


def _limited_groups(root: Path) -> Iterator[_Group]:
    """Yields the control groups of this process that have a limit: its own and those around it.

    https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
    """
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        # In a container the path may be the host's, while the mount shows the container's own group as its root.
        own = PurePosixPath("/", path).relative_to("/")
        for folder in (own, *own.parents):
            group = _read_group(mount / folder, *names)
            if group is not None:
                yield group


def _read_group(folder: Path, limit: str, used: str, prefix: str) -> _Group | None:
    most, current = _read(folder / limit).strip(), _read(folder / used).strip()
    if not most.isdigit() or not current.isdigit():  # no such group, or "max"
        return None
    reclaimable = 0
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in (f"{prefix}inactive_file", f"{prefix}active_file"):
            reclaimable += int(value)
    return _Group(int(most), max(int(current) - reclaimable, 0))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
