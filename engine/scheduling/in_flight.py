"""The scheduler's books of steps that were *launched* and have not *landed*: the device computes them just now.

Meanwhile the next step is planned as if each request that awaits a token went on with it. What cannot be taken back
waits until the step has landed: nobody is put out, and who has ended gives up its blocks only then. See
:mod:`engine.execution.steps.overlapped`.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.scheduling.block_tables import BlockTables, held_blocks
from engine.scheduling.request import Request

if TYPE_CHECKING:
    from engine.scheduling.scheduler import Chunk, StepPlan


class InFlight:
    """Keeps ``num_launched_tokens`` and ``num_awaited_tokens`` of requests.

    Args:
        tables: which blocks the requests hold.
    """

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._num_steps = 0
        self._deferred_frees: dict[Request, bool] = {}  # whether what they computed can be kept

    def __bool__(self) -> bool:
        """Some step has not landed."""
        return self._num_steps > 0

    @property
    def deferred_frees(self) -> Iterable[Request]:
        """Who has ended and still holds blocks."""
        return self._deferred_frees

    def launch(self, plan: StepPlan) -> None:
        """From now until :meth:`complete_step`, the step is being computed."""
        self._num_steps += 1
        for chunk in plan.chunks:
            chunk.request.num_launched_tokens += chunk.end - chunk.start
            chunk.request.num_awaited_tokens += _continues(chunk)

    def complete_step(self, plan: StepPlan, invalidated: Set[str]) -> list[int]:
        """The earliest step is over; ``Scheduler.commit`` follows.

        Args:
            invalidated: ids of requests whose chunk was made void.

        Returns:
            Blocks that somebody gave up with it, whose content is not fit for use.
        """
        self._num_steps -= 1
        tainted: list[int] = []
        for chunk in plan.chunks:
            request = chunk.request
            request.num_launched_tokens -= chunk.end - chunk.start
            request.num_awaited_tokens -= _continues(chunk) and request.id not in invalidated
            if request in self._deferred_frees and not request.num_launched_tokens:
                keep = self._deferred_frees.pop(request)
                held = held_blocks(request)
                self._tables.release(request, keep=keep)
                if not keep:
                    tainted += self._tables.pool.evict(held)
        return tainted

    def invalidate(self, chunk: Chunk) -> None:
        """A chunk of a step that was launched is for nothing; its request waits until that has landed."""
        chunk.request.num_awaited_tokens -= _continues(chunk)

    def release(self, request: Request, *, keep: bool) -> None:
        """Give back the blocks of a request that has ended, as soon as no step writes to them.

        Args:
            keep: what it computed is fit for use.
        """
        if request.num_launched_tokens:
            self._deferred_frees[request] = keep
        else:
            self._tables.release(request, keep=keep)

    def taint(self, request: Request) -> None:
        """What a request computed that has ended since is not fit for use."""
        self._deferred_frees[request] = False

    def resolve(self, plan: StepPlan) -> StepPlan:
        """A plan that was made before the last step landed: with all tokens known, and without those who ended."""
        chunks = [
            chunk._replace(token_ids=tuple(chunk.request.token_ids[chunk.start : chunk.end]))
            for chunk in plan.chunks
            if not chunk.request.is_finished
        ]
        return replace(plan, chunks=tuple(chunks))

    def abandon(self, requests: Iterable[Request]) -> None:
        """Forget it all: the steps will not land."""
        for request in requests:
            request.num_launched_tokens = request.num_awaited_tokens = 0
        self._num_steps = 0
        self._deferred_frees.clear()


def _continues(chunk: Chunk) -> bool:
    """The token it samples will be computed in turn, unless it ends the reply: it is not the last there may be."""
    return chunk.samples and chunk.end + 1 < chunk.request.num_prompt_tokens + chunk.request.max_tokens
