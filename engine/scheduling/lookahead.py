"""Blocks for tokens behind those that a plan computes: what is left over, for nobody waits or is preempted for them."""

from __future__ import annotations

from engine.scheduling.scheduler import Chunk, Scheduler


def reserve_blocks(scheduler: Scheduler, chunk: Chunk, max_tokens: int) -> tuple[Chunk, int]:
    """Take the blocks of up to ``max_tokens`` tokens behind a chunk.

    Returns:
        The chunk with them, and for how many tokens they are.
    """
    tables, pool, request = scheduler.tables, scheduler.pool, chunk.request
    next_step = scheduler.num_running * len(tables.windows)  # a block for each may be needed then
    count = max_tokens
    while count > 0 and (missing := tables.num_missing_blocks(request, chunk.end + count)):
        if missing + next_step <= pool.num_free:
            copies = tables.grow(request, chunk.end + count)
            assert not copies, "the plan has seen to blocks that others read too"
            break
        count -= 1
    if count > 0:
        chunk = chunk._replace(block_tables=tuple([tuple(table) for table in request.tables]))
    return chunk, count
