"""Tracks steps that are launched and have not completed: the device is computing them.

Meanwhile the next step is planned as if no awaited token ended its reply. Irreversible actions wait until the steps
complete: no request is preempted, and the blocks of finished requests are released only then. See
:mod:`engine.execution.steps.overlapped`.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.scheduling.block_tables import BlockTables
from engine.scheduling.request import Request

if TYPE_CHECKING:
    from engine.scheduling.step_plan import Chunk, StepPlan


class InFlight:
    """Maintains ``num_launched_tokens`` and ``num_awaited_tokens`` of requests, and defers releases of blocks.

    Args:
        tables: block tables of the requests.
    """

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._num_steps = 0
        self._deferred_frees: dict[Request, bool] = {}  # finished request -> whether its tokens may stay cached

    def __bool__(self) -> bool:
        """Whether a launched step has not completed."""
        return self._num_steps > 0

    @property
    def deferred_frees(self) -> Iterable[Request]:
        """The finished requests that still hold blocks."""
        return self._deferred_frees

    def launch(self, plan: StepPlan) -> None:
        """Records that the step is being computed, until :meth:`complete`."""
        self._num_steps += 1
        for chunk in plan.chunks:
            chunk.request.num_launched_tokens += chunk.end - chunk.start
            chunk.request.num_awaited_tokens += _continues(chunk)

    def complete(self, plan: StepPlan, invalidated: Set[str]) -> None:
        """Records that the earliest step has completed. Call ``Scheduler.commit`` afterwards.

        Args:
            plan: the plan as launched.
            invalidated: ids of requests whose chunk in it was invalidated.
        """
        self._num_steps -= 1
        for chunk in plan.chunks:
            request = chunk.request
            request.num_launched_tokens -= chunk.end - chunk.start
            request.num_awaited_tokens -= _continues(chunk) and request.id not in invalidated
            if request in self._deferred_frees and not request.num_launched_tokens:
                self._tables.release(request, keep=self._deferred_frees.pop(request))

    def invalidate(self, chunk: Chunk) -> None:
        """Records that a launched chunk has a wrong input. Its request waits until that step has completed."""
        chunk.request.num_awaited_tokens -= _continues(chunk)

    def release(self, request: Request, *, keep: bool) -> None:
        """Releases the blocks of a finished request, as soon as no launched step writes to them.

        Args:
            keep: its computed tokens may stay in the prefix cache.
        """
        if request.num_launched_tokens:
            self._deferred_frees[request] = keep
        else:
            self._tables.release(request, keep=keep)

    def taint(self, request: Request) -> None:
        """Marks the computed tokens of a finished request, whose release is deferred, as unusable."""
        self._deferred_frees[request] = False

    def with_known_tokens(self, plan: StepPlan) -> StepPlan:
        """Returns a plan made before the last step completed, with its sampled tokens and without finished requests."""
        chunks = [
            chunk._replace(token_ids=tuple(chunk.request.token_ids[chunk.start : chunk.end]))
            for chunk in plan.chunks
            if not chunk.request.is_finished
        ]
        return replace(plan, chunks=tuple(chunks))

    def abandon(self, requests: Iterable[Request]) -> None:
        """Forgets all launched steps: they will not complete."""
        for request in requests:
            request.num_launched_tokens = request.num_awaited_tokens = 0
        self._num_steps = 0
        self._deferred_frees.clear()


def _continues(chunk: Chunk) -> bool:
    """Whether a later step computes the token that this chunk samples; False if it reaches ``max_tokens``.

    A stop token may end the reply all the same, but is not known yet.
    """
    return chunk.samples and chunk.end + 1 < chunk.request.num_prompt_tokens + chunk.request.max_tokens
