"""Step strategies plan, compute and sample steps. The sequential step is their common fallback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from torch import Tensor

from engine.errors import EngineError
from engine.execution.runner import Runner
from engine.execution.step_sampler import StepSampler
from engine.outputs import TokenLogprobs
from engine.sampling.beam_search import Candidates
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import StepPlan


class ComputedStep(NamedTuple):
    """A step whose tokens are known. End the streams in ``failures``, then commit it."""

    plan: StepPlan
    tokens: Mapping[str, int]  #: by request id, for each sampling request and fork whose stream has not failed
    seconds: float  #: spent on this step alone, by the host's clock
    sampled_at: float | None = None  #: when the tokens were sampled, on the monotonic clock; None means now
    logprobs: Mapping[str, TokenLogprobs] = {}  #: of the sampled tokens, by request id
    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = {}  #: by request id
    candidates: Mapping[str, Candidates] = {}  #: of beams, by request id
    failures: Mapping[str, EngineError] = {}  #: streams to end, by stream id
    is_continuation: bool = False  #: computed by the same call as the step before: a reply's deltas are merged
    has_forward_pass: bool = True  #: False if its logits came from the forward pass of the step before


class StepStrategy(ABC):
    """Plans, computes and samples steps in its own way. Used by one thread only.

    Args:
        scheduler: makes the plans.
        runner: computes them.
        sampler: samples the computed logits.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, sampler: StepSampler) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.sampler = sampler
        self.request_ids: tuple[str, ...] = ()
        """Requests in the latest step, or in the steps in flight: one of them is to blame if something fails now."""

    @abstractmethod
    def advance(self) -> Iterator[ComputedStep]:
        """Computes the next step, or several. Yields nothing when there is nothing to compute, or none has completed.

        The caller commits each step before it requests the next one.

        Raises:
            Exception: a step failed. Nothing can be computed any more; :attr:`request_ids` are those it was for.
        """

    def plan(self, steps: int = 1) -> StepPlan:
        """Plans the next step, see :meth:`Scheduler.plan`. Zeroes the blocks of failed requests before their reuse."""
        unusable = self.scheduler.pop_unusable_blocks()
        if unusable:
            self.runner.zero_blocks(unusable)
        return self.scheduler.plan(steps)

    def compute(self, plan: StepPlan) -> ComputedStep:
        """Computes and samples one step, and waits for its tokens. Any plan with chunks can be computed this way."""
        self.record_requests(plan)
        began = monotonic()
        return self.sample(plan, self.execute(plan), began)

    def execute(self, plan: StepPlan) -> Tensor:
        """Computes a plan's logits, see :meth:`Runner.execute`, and meanwhile what the replies' grammars allow next."""
        with self.sampler.computing_masks(plan):
            return self.runner.execute(plan)

    def sample(self, plan: StepPlan, logits: Tensor, began: float) -> ComputedStep:
        """Samples a step without draft tokens.

        Args:
            logits: ``[plan.num_sampled_rows + n, vocab_size]``, ``n`` of them for scoring prompt tokens; as from
                :meth:`Runner.execute`.
            began: when the step began, on the monotonic clock.
        """
        prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = {}
        if len(logits) > plan.num_sampled_rows:
            prompt_logprobs = self.sampler.score_prompts(plan, logits[plan.num_sampled_rows :])
            logits = logits[: plan.num_sampled_rows]
        sampled = self.sampler.sample(plan, logits)
        return ComputedStep(
            plan,
            sampled.tokens,
            seconds=monotonic() - began,
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            candidates=sampled.candidates,
            failures=sampled.failures,
        )

    def record_requests(self, *plans: StepPlan) -> None:
        """Sets :attr:`request_ids` to the requests of steps that are about to be computed, or are in flight."""
        self.request_ids = tuple([chunk.request.id for plan in plans for chunk in plan.chunks])

    def needs_host(self, request: Request) -> bool:
        """Whether the host must see a request's token, or its logits, before the token after it can be sampled."""
        return bool(
            request.forks or request.params.logprobs is not None or self.sampler.sampling_row(request).adjusts_logits
        )
