"""Who gets guesses in a step, and how many: what its budget and the free blocks leave over."""

from __future__ import annotations

from engine.request import Request
from engine.scheduler import Chunk, Scheduler, StepPlan
from engine.speculation.proposer import Proposer


class Drafting:
    """Adds drafts to plans. Nobody waits or is preempted for a guess.

    Args:
        proposer: makes the guesses.
        scheduler: whose plans they are added to.
        num_tokens: most guesses for one reply in one step.
        short_step: a step of up to so many tokens costs less than a longer one, and guesses do not make it longer.
            None where there is no such bound.
    """

    def __init__(
        self, proposer: Proposer, scheduler: Scheduler, *, num_tokens: int, short_step: int | None = None
    ) -> None:
        self._proposer = proposer
        self._scheduler = scheduler
        self._num_tokens = num_tokens
        self._short_step = short_step

    def extend(self, plan: StepPlan) -> StepPlan:
        """The same step with guesses behind those of its chunks that go on with a reply."""
        counts = self._make_room(plan)
        drafts = self._proposer.propose(plan.chunks, counts)
        return StepPlan(tuple(map(self._with_draft, plan.chunks, drafts, counts)), plan.copies)

    def _make_room(self, plan: StepPlan) -> list[int]:
        """For each chunk how many tokens may be guessed; their blocks are taken."""
        budget = self._scheduler.max_batched_tokens - plan.num_tokens
        if self._short_step is not None and plan.num_tokens <= self._short_step:
            budget = min(budget, self._short_step - plan.num_tokens)
        tables, pool = self._scheduler.tables, self._scheduler.pool
        next_step = self._scheduler.num_running * len(tables.windows)  # a block for each may be needed then
        counts = []
        for chunk in plan.chunks:
            count = min(budget, self._most_useful(chunk))
            while count > 0 and (missing := tables.missing(chunk.request, chunk.end + count)):
                if missing + next_step <= pool.num_free:
                    copies = tables.grow(chunk.request, chunk.end + count)
                    assert not copies, "the plan has seen to blocks that others read too"
                    break
                count -= 1
            counts.append(count)
            budget -= count
        return counts

    def _most_useful(self, chunk: Chunk) -> int:
        request = chunk.request
        if not chunk.samples or request.num_output_tokens == 0:  # forks begin with the first token
            return 0
        return min(self._num_tokens, request.max_tokens - request.num_output_tokens - 1)

    def _with_draft(self, chunk: Chunk, guessed: tuple[int, ...], count: int) -> Chunk:
        draft = _before_the_end(guessed[:count], chunk.request)
        if not draft:
            return chunk
        chunk.request.num_draft_tokens += len(draft)
        self._scheduler.counters.draft_tokens += len(draft)
        return chunk._replace(draft=draft, block_tables=tuple([tuple(table) for table in chunk.request.tables]))


def _before_the_end(draft: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """Without a token that would end the reply, and those behind it: nothing is computed from them."""
    for index, token in enumerate(draft):
        if token in request.stop_token_ids:
            return draft[:index]
    return draft
