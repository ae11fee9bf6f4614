"""Who gets guesses in a step, and how many: what its budget and the free blocks leave over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.execution.speculation.proposer import Proposer
from engine.execution.speculation.verification import rounds
from engine.scheduling.lookahead import reserve_blocks
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Chunk, Scheduler, StepPlan


class Drafting:
    """Adds drafts to plans. Nobody waits or is preempted for a guess.

    Args:
        proposer: makes the guesses.
        scheduler: whose plans they are added to.
        num_tokens: most guesses for one reply in one step.
        max_short_step_tokens: a step of up to so many tokens costs less than a longer one, and guesses do not make it longer.
            None where there is no such bound.
    """

    def __init__(
        self, proposer: Proposer, scheduler: Scheduler, *, num_tokens: int, max_short_step_tokens: int | None = None
    ) -> None:
        self._proposer = proposer
        self._scheduler = scheduler
        self._num_tokens = num_tokens
        self._max_short_step_tokens = max_short_step_tokens

    def extend(self, plan: StepPlan) -> StepPlan:
        """The same step with guesses behind those of its chunks that go on with a reply."""
        plan, counts = self._reserve_blocks(plan)
        drafts = self._proposer.propose(plan, counts)
        return replace(plan, chunks=tuple(map(self._with_draft, plan.chunks, drafts)))

    def rounds(self, plan: StepPlan) -> Iterator[tuple[StepPlan, list[int] | None]]:
        """What to sample from a step, see :func:`engine.execution.speculation.verification.rounds`."""
        confirmed: list[Chunk] = []
        for part, rows in rounds(plan, self._scheduler.counters):
            if part is not plan:
                confirmed += [chunk for chunk in part.chunks if not chunk.draft]
            yield part, rows
        if confirmed:
            self._proposer.confirm(confirmed)

    def _reserve_blocks(self, plan: StepPlan) -> tuple[StepPlan, list[int]]:
        """For each chunk how many tokens may be guessed; their blocks are taken."""
        # Beside a prompt each token costs its arithmetic, and the prompt's pace leaves out what is guessed.
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
        if not chunk.samples or request.num_output_tokens == 0:  # forks begin with the first token
            return 0
        return min(self._num_tokens, request.max_tokens - request.num_output_tokens - 1)

    def _with_draft(self, chunk: Chunk, guessed: tuple[int, ...]) -> Chunk:
        draft = _before_the_end(guessed, chunk.request)
        if not draft:
            return chunk
        chunk.request.num_draft_tokens += len(draft)
        self._scheduler.counters.draft_tokens += len(draft)
        return chunk._replace(draft=draft)


def _before_the_end(draft: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """Without a token that would end the reply, and those behind it: nothing is computed from them."""
    for index, token in enumerate(draft):
        if token in request.stop_token_ids:
            return draft[:index]
    return draft
