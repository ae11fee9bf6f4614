"""Multi-step decoding: one C++ call computes several decode steps, each from the tokens the previous one sampled.

Avoids reacquiring the GIL between decode steps. Where other threads compete for it, such as those that serve pages,
the engine would wait for the GIL longer than it computes. The output batcher holds a reply's text for a moment anyway
(:mod:`engine.runtime.output_batcher`), and only steps that end within that time are added. So a single reader gets
each token by itself, and sixty readers get two or three at a time.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from time import monotonic
from typing import Protocol

from engine.execution.native.decoder import ENDED, MultiStepOutput, MultiStepRow
from engine.execution.runner import Runner
from engine.execution.step_sampler import StepSampler
from engine.execution.steps.speculative import SpeculativeSteps
from engine.execution.steps.strategy import ComputedStep, StepStrategy
from engine.scheduling.coalescing import max_hold_seconds
from engine.scheduling.lookahead import reserve_blocks
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import Chunk, StepPlan

log = logging.getLogger(__name__)

MAX_STEPS = 4
"""Steps per call. A request that arrives meanwhile waits for the last of them."""


class DecodeTimes(Protocol):
    """How long decode steps take."""

    def decode_seconds(self, decodes: int) -> float | None:
        """Returns the duration of a step of this many decodes and nothing else; None if it is not known yet."""
        ...


class MultiSteps(StepStrategy):
    """Makes as many steps per call as end within the time that a delta may be held.

    Args:
        times: step durations, learned from earlier steps.
        single: makes the steps that C++ cannot continue from; None makes them one by one.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        sampler: StepSampler,
        times: DecodeTimes,
        single: SpeculativeSteps | None = None,
    ) -> None:
        super().__init__(scheduler, runner, sampler)
        self._times = times
        self._single = single
        self._is_defective = False

    def advance(self) -> Iterator[ComputedStep]:
        max_steps = self.max_steps()
        plan = self.plan(max_steps)
        if not plan.chunks:
            return
        if max_steps == 1 or not self._can_run(plan):
            if self._single is None:
                yield self.compute(plan)
            else:
                self.record_requests(plan)
                yield from self._single.run(plan)
            return
        self.record_requests(plan)
        began = monotonic()
        plan, replies = self._reserve(plan, max_steps)
        try:
            output = self.runner.execute_steps(plan, replies, max_steps)
        except (struct.error, ArithmeticError, TypeError, ValueError):  # a reply's parameters cannot be packed
            log.exception("multi-step decoding failed; computing a single step instead")
            computed = self.compute(plan)  # row by row, which finds the request
            self._is_defective = not computed.failures  # if no request caused it, it would recur in each step
            yield computed
            return
        if output.tokens:
            yield from self._computed_steps(plan, output, began)
        else:  # the first step's logits were unusable; sampling row by row finds whose
            yield self.sample(plan, output.logits, began)

    def max_steps(self) -> int:
        """Returns how many steps end within the time that a delta may be held; 1 if the host must see each token."""
        decodes = self.scheduler.num_running
        seconds = self._times.decode_seconds(decodes) if decodes and not self._is_defective else None
        if seconds is None:
            return 1
        max_steps = min(MAX_STEPS, 1 + int(max_hold_seconds(decodes) / max(seconds, 1e-6)))
        return max_steps if max_steps > 1 and self._can_sample_ahead(self.scheduler.running) else 1

    def _can_run(self, plan: StepPlan) -> bool:
        """Whether C++ can continue from this step: it samples tokens, and none of them needs the host."""
        return (
            bool(plan.sampling)
            and plan.num_tokens <= self.runner.max_native_tokens
            and not any(chunk.scored for chunk in plan.chunks)
            and self._can_sample_ahead([chunk.request for chunk in plan.sampling])
        )

    def _can_sample_ahead(self, requests: Iterable[Request]) -> bool:
        return not any(
            self.needs_host(request) or not self.sampler.sampling_row(request).is_native for request in requests
        )

    def _reserve(self, plan: StepPlan, max_steps: int) -> tuple[StepPlan, list[MultiStepRow]]:
        """Returns the plan with blocks for the following steps, and how many tokens each of its replies may sample."""
        chunks: list[Chunk] = []
        replies: list[MultiStepRow] = []
        for index, chunk in enumerate(plan.chunks):
            if chunk.samples:
                request = chunk.request
                wanted = min(max_steps, request.max_tokens - request.num_output_tokens)
                chunk, num_extra = reserve_blocks(self.scheduler, chunk, wanted - 1)
                replies.append(
                    MultiStepRow(self.sampler.sampling_row(request), request.stop_token_ids, index, 1 + num_extra)
                )
            chunks.append(chunk)
        return replace(plan, chunks=tuple(chunks)), replies

    def _computed_steps(self, plan: StepPlan, output: MultiStepOutput, began: float) -> Iterator[ComputedStep]:
        """Yields the steps in ``output`` as if each had been planned by itself.

        Args:
            plan: the first step.
            began: when the first step began.
        """
        chunks, previous_tokens, previous_seconds = list(plan.sampling), [ENDED], 0.0
        for number, (tokens, seconds) in enumerate(zip(output.tokens, output.seconds, strict=True)):
            active = [index for index, token in enumerate(tokens) if token != ENDED]
            if number:
                for index in active:
                    end = chunks[index].end
                    chunks[index] = chunks[index]._replace(start=end, end=end + 1, token_ids=(previous_tokens[index],))
                plan = StepPlan(tuple([chunks[index] for index in active]), num_decodes=len(active))
                self.scheduler.counters.steps += 1
            sampled = {chunks[index].request.id: tokens[index] for index in active}
            yield ComputedStep(
                plan, sampled, seconds - previous_seconds, sampled_at=began + seconds, is_continuation=number > 0
            )
            previous_tokens, previous_seconds = tokens, seconds
