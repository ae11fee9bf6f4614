"""Speculative steps: adds draft tokens to a step, and verifies them against the sampled tokens.

A step with a draft is several steps whose logits come at once. The first round samples after the newest real token. If
the sampled token equals the draft token, the draft token's row is the next round, and so on. Each round is sampled,
committed and output as if it had been planned by itself, with everything that depends on earlier tokens: penalties,
bans, stop strings. Rows after a wrong draft token are wasted; the next step overwrites them.

See :mod:`engine.execution.speculation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from time import monotonic

from torch import Tensor

from engine.execution.runner import Runner
from engine.execution.speculation.proposer import Proposer
from engine.execution.step_sampler import StepSampler
from engine.execution.steps.strategy import ComputedStep, StepStrategy
from engine.scheduling.lookahead import reserve_blocks
from engine.scheduling.request import Request, RequestStatus
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import Chunk, StepPlan


class SpeculativeSteps(StepStrategy):
    """Makes steps with as many draft tokens as budget and free blocks allow.

    No request waits or is preempted for a draft token.

    Args:
        proposer: makes the draft tokens.
        max_draft_tokens: of one reply in one step; or a function that returns them.
        max_sampled_rows: of one step; None is no limit.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        sampler: StepSampler,
        proposer: Proposer,
        max_draft_tokens: int | Callable[[Request], int],
        max_sampled_rows: int | None = None,
    ) -> None:
        super().__init__(scheduler, runner, sampler)
        self._proposer = proposer
        self._max_draft_tokens = max_draft_tokens
        self._max_sampled_rows = max_sampled_rows

    def advance(self) -> Iterator[ComputedStep]:
        plan = self.plan()
        if plan.chunks:
            yield from self.run(plan)

    def run(self, plan: StepPlan) -> Iterator[ComputedStep]:
        """Computes a planned step with draft tokens, where it may have any."""
        self.record_requests(plan)
        began = monotonic()
        plan = self._with_drafts(plan)
        logits = self.execute(plan)
        if plan.num_sampled_rows == len(plan.sampling):
            yield self.sample(plan, logits, began)
        else:
            yield from self._verify(plan, logits, began)

    def _verify(self, plan: StepPlan, logits: Tensor, began: float) -> Iterator[ComputedStep]:
        """Yields one round for each further token of a step with drafts."""
        rows = list(accumulate([1 + len(chunk.draft) for chunk in plan.sampling[:-1]], initial=0))
        confirmed: list[Chunk] = []
        assert len(logits) == plan.num_sampled_rows, "no drafts in a step with prompt tokens, so none is scored"
        is_first = True
        while plan.chunks:
            sampled = self.sampler.sample(plan, logits[rows])
            yield ComputedStep(
                plan,
                sampled.tokens,
                seconds=monotonic() - began,
                logprobs=sampled.logprobs,
                candidates=sampled.candidates,
                failures=sampled.failures,
                is_continuation=not is_first,
                has_forward_pass=is_first,
            )
            began, is_first = monotonic(), False
            next_rounds = [(_next_round(chunk), row + 1) for chunk, row in zip(plan.sampling, rows, strict=True)]
            accepted = [(chunk, row) for chunk, row in next_rounds if chunk is not None]
            plan, rows = StepPlan(tuple([chunk for chunk, _row in accepted])), [row for _chunk, row in accepted]
            self.scheduler.counters.accepted_draft_tokens += len(accepted)
            # Fully accepted: the draft model has not computed their last draft token yet.
            confirmed += [chunk for chunk in plan.chunks if not chunk.draft]
        if confirmed:
            self._proposer.confirm(confirmed)
            yield ComputedStep(  # no tokens: its time counts as well
                plan, {}, seconds=monotonic() - began, is_continuation=True, has_forward_pass=False
            )

    def _with_drafts(self, plan: StepPlan) -> StepPlan:
        """Returns the plan with draft tokens added to the chunks that continue a reply."""
        plan, counts = self._reserve(plan)
        drafts = self._proposer.propose(plan, counts)
        return replace(plan, chunks=tuple(map(self._with_draft, plan.chunks, drafts)))

    def _reserve(self, plan: StepPlan) -> tuple[StepPlan, list[int]]:
        """Returns the plan with blocks for draft tokens, and how many tokens may be drafted for each chunk."""
        # No drafts in a step with prompt tokens: each token costs compute there, and pacing does not count drafts.
        budget = 0 if plan.num_prompt_tokens else self.scheduler.max_batched_tokens - plan.num_tokens
        max_short_step_tokens = self.runner.max_short_step_tokens
        if max_short_step_tokens is not None and plan.num_tokens <= max_short_step_tokens:
            budget = min(budget, max_short_step_tokens - plan.num_tokens)  # drafts never make a short step a long one
        if self._max_sampled_rows is not None:
            budget = min(budget, self._max_sampled_rows - plan.num_sampled_rows)
        chunks: list[Chunk] = []
        counts: list[int] = []
        for chunk in plan.chunks:
            wanted = min(budget, self._max_useful_tokens(chunk)) if budget > 0 else 0
            chunk, count = reserve_blocks(self.scheduler, chunk, wanted)
            chunks.append(chunk)
            counts.append(count)
            budget -= count
        return replace(plan, chunks=tuple(chunks)), counts

    def _max_useful_tokens(self, chunk: Chunk) -> int:
        request = chunk.request
        if not chunk.samples or request.is_beam or request.num_output_tokens == 0:  # forks start at the first token
            return 0
        limit = self._max_draft_tokens
        max_tokens = limit if isinstance(limit, int) else limit(request)
        return min(max_tokens, request.max_tokens - request.num_output_tokens - 1)

    def _with_draft(self, chunk: Chunk, proposed: tuple[int, ...]) -> Chunk:
        draft = _cut_at_stop_token(proposed, chunk.request)
        if not draft:
            return chunk
        chunk.request.num_draft_tokens += len(draft)
        self.scheduler.counters.draft_tokens += len(draft)
        return chunk._replace(draft=draft)


def _cut_at_stop_token(draft: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """Cuts a draft off before a token that would end the reply: nothing is computed from that token."""
    for index, token in enumerate(draft):
        if token in request.stop_token_ids:
            return draft[:index]
    return draft


def _next_round(chunk: Chunk) -> Chunk | None:
    """Returns a chunk's next draft token as the next round's chunk, if it was sampled."""
    request = chunk.request
    if not chunk.draft or request.status is not RequestStatus.RUNNING or request.token_ids[chunk.end] != chunk.draft[0]:
        return None
    request.num_accepted_draft_tokens += 1
    return chunk._replace(start=chunk.end, end=chunk.end + 1, token_ids=chunk.draft[:1], draft=chunk.draft[1:])
