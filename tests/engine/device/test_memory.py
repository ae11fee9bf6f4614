"""Memory that is taken before it is written."""

from __future__ import annotations

import mmap
import sys

import pytest
import torch

from benchmarks.machine import resident_bytes
from engine.device.memory import populate_pages

MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone can do it")
@pytest.mark.parametrize("num_threads", [1, 3])
def test_populated_memory_is_resident_and_stays_as_it_was(num_threads: int) -> None:
    # Mapped here: an allocator could give memory that was used before, and is resident.
    parts = [
        torch.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE), dtype=torch.uint8)
        for size in (64 * MIB, 32 * MIB + 17, 1)
    ]
    parts[1][12345] = 7
    before = resident_bytes()
    if not populate_pages(parts, num_threads):
        pytest.skip("this kernel cannot do it")
    assert resident_bytes() - before > 80 * MIB
    assert int(parts[1][12345]) == 7
    assert sum(int(part.sum()) for part in parts) == 7
