"""Decides which chunks of a step get draft tokens, and how many: as many as budget and free blocks allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.execution.speculation.proposer import Proposer
from engine.execution.speculation.verification import verify_drafts
from engine.scheduling.lookahead import reserve_blocks
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Chunk, Scheduler, StepPlan


class Drafting:
    """Adds draft tokens to plans. No request waits or is preempted for a draft token.

    Args:
        proposer: makes the draft tokens.
        scheduler: makes the plans that they are added to.
        num_tokens: most draft tokens of one reply in one step.
        max_short_step_tokens: a step of up to this many tokens is cheaper, and draft tokens never push it beyond.
            None if there is no such bound.
    """

    def __init__(
        self, proposer: Proposer, scheduler: Scheduler, *, num_tokens: int, max_short_step_tokens: int | None = None
    ) -> None:
        self._proposer = proposer
        self._scheduler = scheduler
        self._num_tokens = num_tokens
        self._max_short_step_tokens = max_short_step_tokens

    def extend(self, plan: StepPlan) -> StepPlan:
        """Returns the plan with draft tokens added to the chunks that continue a reply."""
        plan, counts = self._reserve_blocks(plan)
        drafts = self._proposer.propose(plan, counts)
        return replace(plan, chunks=tuple(map(self._with_draft, plan.chunks, drafts)))

    def verify(self, plan: StepPlan) -> Iterator[tuple[StepPlan, list[int] | None]]:
        """Yields what to sample from a step, see :func:`engine.execution.speculation.verification.verify_drafts`."""
        confirmed: list[Chunk] = []
        for part, rows in verify_drafts(plan, self._scheduler.counters):
            if part is not plan:
                confirmed += [chunk for chunk in part.chunks if not chunk.draft]
            yield part, rows
        if confirmed:
            self._proposer.confirm(confirmed)

    def _reserve_blocks(self, plan: StepPlan) -> tuple[StepPlan, list[int]]:
        """Reserves blocks for draft tokens, and returns how many tokens may be drafted for each chunk."""
        # No drafts in a step with prompt tokens: each token costs compute there, and pacing does not count drafts.
        budget = 0 if plan.num_prompt_tokens else self._scheduler.max_batched_tokens - plan.num_tokens
        if self._max_short_step_tokens is not None and plan.num_tokens <= self._max_short_step_tokens:
            budget = min(budget, self._max_short_step_tokens - plan.num_tokens)
        chunks: list[Chunk] = []
        counts: list[int] = []
        for chunk in plan.chunks:
            chunk, count = reserve_blocks(self._scheduler, chunk, min(budget, self._max_useful_tokens(chunk)))
            chunks.append(chunk)
            counts.append(count)
            budget -= count
        return replace(plan, chunks=tuple(chunks)), counts

    def _max_useful_tokens(self, chunk: Chunk) -> int:
        request = chunk.request
        if not chunk.samples or request.num_output_tokens == 0:  # forks start at the first token
            return 0
        return min(self._num_tokens, request.max_tokens - request.num_output_tokens - 1)

    def _with_draft(self, chunk: Chunk, proposed: tuple[int, ...]) -> Chunk:
        draft = _before_the_end(proposed, chunk.request)
        if not draft:
            return chunk
        chunk.request.num_draft_tokens += len(draft)
        self._scheduler.counters.draft_tokens += len(draft)
        return chunk._replace(draft=draft)


def _before_the_end(draft: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """Cuts a draft off before a token that would end the reply: nothing is computed from that token."""
    for index, token in enumerate(draft):
        if token in request.stop_token_ids:
            return draft[:index]
    return draft
