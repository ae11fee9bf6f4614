"""Reserves blocks for tokens after those of a plan. Only spare blocks: no request waits or is preempted for them."""

from __future__ import annotations

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import Chunk


def reserve_blocks(scheduler: Scheduler, chunk: Chunk, max_tokens: int) -> tuple[Chunk, int]:
    """Allocates blocks for up to ``max_tokens`` tokens after a chunk.

    Returns:
        The chunk with these blocks, and the number of tokens they are for.
    """
    tables, pool, request = scheduler.tables, scheduler.pool, chunk.request
    next_step_blocks = scheduler.num_running * len(tables.windows)  # each table may need a block then
    count = max_tokens
    while count > 0 and (missing := tables.num_missing_blocks(request, chunk.end + count)):
        if missing + next_step_blocks <= pool.num_free:
            copies = tables.grow(request, chunk.end + count)
            assert not copies, "the plan has already copied shared blocks"
            break
        count -= 1
    if count > 0:
        chunk = chunk._replace(block_tables=tuple([tuple(table) for table in request.tables]))
    return chunk, count
