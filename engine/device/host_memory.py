"""Available memory of the machine, or of the container that limits it. Imports no PyTorch."""

from __future__ import annotations

import os
from pathlib import Path


def available_host_memory() -> int:
    """Returns the bytes that can be allocated now without evicting or swapping anything."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # without /proc/meminfo: a guess
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    # A container may be limited to less than the machine has (cgroup v2; "max" means no limit).
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and (most := limit.read_text().strip()).isdigit():
        free = min(free, int(most) - int(used.read_text()))
    return max(free, 0)
