"""Measures memory read bandwidth, the upper bound for decoding one chat, which reads every weight once per token.

    python -m benchmarks.bandwidth --threads 2 1024 64     # buffers of these sizes, MiB

Reads in two ways with the given number of threads: a sum, and a matrix-vector product. The best pass of either counts,
because other processes can only slow a pass down. Uses huge pages where the kernel grants them.
"""

from __future__ import annotations

import argparse
import json
import mmap
from collections.abc import Callable
from time import perf_counter

import torch

COLUMNS = 4096
SECONDS = 0.4
"""Duration of the passes for each way and round; the first pass of each round does not count."""
ROUNDS = 3


def read_bandwidth(num_bytes: int, threads: int) -> float:
    """Returns GB/s for a buffer of this size; a buffer that fits into a cache is read from there."""
    torch.set_num_threads(threads)
    rows = max(1, num_bytes // (4 * COLUMNS))
    memory = mmap.mmap(-1, rows * COLUMNS * 4)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    matrix = torch.frombuffer(memory, dtype=torch.float32).view(rows, COLUMNS).fill_(1.0)
    vector = torch.ones(COLUMNS)
    best = 0.0
    for _ in range(ROUNDS):
        ways: tuple[Callable[[], torch.Tensor], ...] = (matrix.sum, lambda: torch.mv(matrix, vector))
        for way in ways:
            way()
            end = perf_counter() + SECONDS
            while (begin := perf_counter()) < end:
                way()
                best = max(best, matrix.nbytes / (perf_counter() - begin) / 1e9)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mebibytes", nargs="+", type=int)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    print(json.dumps({str(size): round(read_bandwidth(size << 20, args.threads), 1) for size in args.mebibytes}))


if __name__ == "__main__":
    main()
