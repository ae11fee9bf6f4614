"""Multi-step decoding: one C++ call computes several decode steps, each from the tokens the previous one sampled.

Avoids reacquiring the GIL between decode steps. Where other threads compete for it, such as those that serve pages,
the engine would wait for the GIL longer than it computes. The output batcher holds a reply's text for a moment anyway
(:mod:`engine.runtime.output_batcher`), and only steps that end within that time are added. So a single reader gets
each token by itself, and sixty readers get up to five at a time.

C++ adds bias and penalties, and keeps the logits of replies with log-probabilities, which are scored after the call.
Of replies with a grammar or bans, Python says in each step what may come next, while C++ samples for their neighbours.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from time import monotonic
from typing import Protocol

from engine.execution.native.multi_step import ENDED, MultiStepOutput, MultiStepRow
from engine.execution.runner import Runner
from engine.execution.step_sampler import StepSampler
from engine.execution.steps.host_replies import HostReplies
from engine.execution.steps.speculative import SpeculativeSteps
from engine.execution.steps.strategy import ComputedStep, StepStrategy
from engine.outputs import TokenLogprobs
from engine.scheduling.coalescing import max_hold_seconds
from engine.scheduling.lookahead import reserve_blocks
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import Chunk, StepPlan

log = logging.getLogger(__name__)

MAX_STEPS = 5
"""Steps per call. A request that arrives meanwhile waits for the last of them."""
MAX_SCORED_BYTES = 1 << 26
"""Most memory for the logits of replies with log-probabilities; a call that would need more computes one step."""


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
        if max_steps == 1 or not self._can_run(plan, max_steps):
            if self._single is None:
                yield self.compute(plan)
            else:
                self.record_requests(plan)
                yield from self._single.run(plan)
            return
        self.record_requests(plan)
        began = monotonic()
        plan, replies = self._reserve(plan, max_steps)
        requests = [chunk.request for chunk in plan.sampling]
        host = None
        if any(reply.sampling.needs_python for reply in replies):
            host = HostReplies(requests, self.sampler, max_steps, self.runner.vocab_size)
        try:
            with host or nullcontext():
                output = self.runner.execute_steps(plan, replies, max_steps, host)
        except (struct.error, ArithmeticError, TypeError, ValueError):  # a reply's parameters cannot be packed
            log.exception("multi-step decoding failed; computing a single step instead")
            computed = self.compute(plan)  # row by row, which finds the request
            self._is_defective = not computed.failures  # if no request caused it, it would recur in each step
            yield computed
            return
        if output.tokens:
            yield from self._computed_steps(plan, output, began)
            return
        # Sampling row by row finds whose scores the first step cannot use.
        computed = self.sample(plan, output.logits, began)
        if output.error is not None and not computed.failures:
            log.error("sampling between steps failed; computing single steps from now on", exc_info=output.error)
            self._is_defective = True
        yield computed

    def max_steps(self) -> int:
        """Returns how many steps end within the time that a delta may be held; 1 if each reply needs the host."""
        decodes = self.scheduler.num_running
        seconds = self._times.decode_seconds(decodes) if decodes and not self._is_defective else None
        if seconds is None:
            return 1
        max_steps = min(MAX_STEPS, 1 + int(max_hold_seconds(decodes) / max(seconds, 1e-6)))
        return max_steps if max_steps > 1 and self._can_sample_ahead(self.scheduler.running) else 1

    def _can_run(self, plan: StepPlan, max_steps: int) -> bool:
        """Whether C++ can continue from this step: it samples tokens, and not all of them need the host."""
        return (
            bool(plan.sampling)
            and plan.num_tokens <= self.runner.max_native_tokens
            and not any(chunk.scored for chunk in plan.chunks)
            and self._can_sample_ahead([chunk.request for chunk in plan.sampling])
            and self._scored_bytes(plan, max_steps) <= MAX_SCORED_BYTES
        )

    def _can_sample_ahead(self, requests: Sequence[Request]) -> bool:
        """Whether C++ can sample for one of them at least, and go on beside the others.

        Where all need Python, single steps are better: they draft the tokens that a grammar forces.
        """
        if any(request.forks or request.is_beam for request in requests):
            return False
        return not all(self.sampler.sampling_row(request).needs_python for request in requests)

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
                    MultiStepRow(
                        self.sampler.sampling_row(request),
                        request.stop_token_ids,
                        index,
                        1 + num_extra,
                        is_scored=request.params.logprobs is not None,
                    )
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
        logprobs = self._logprobs([chunk.request for chunk in chunks], output)
        for number, (tokens, seconds) in enumerate(zip(output.tokens, output.seconds, strict=True)):
            active = [index for index, token in enumerate(tokens) if token != ENDED]
            if not active:  # each had ended with the token before
                return
            if number:
                for index in active:
                    last = chunks[index]
                    token_ids = (previous_tokens[index],)
                    chunks[index] = Chunk(
                        last.request, last.end, last.end + 1, token_ids, last.block_tables, samples=True
                    )
                plan = StepPlan(tuple([chunks[index] for index in active]), num_decodes=len(active))
                self.scheduler.counters.steps += 1
            sampled = {chunks[index].request.id: tokens[index] for index in active}
            yield ComputedStep(
                plan,
                sampled,
                seconds - previous_seconds,
                sampled_at=began + seconds,
                logprobs=logprobs[number],
                is_continuation=number > 0,
            )
            previous_tokens, previous_seconds = tokens, seconds

    def _logprobs(self, requests: Sequence[Request], output: MultiStepOutput) -> list[dict[str, TokenLogprobs]]:
        """Returns the log-probabilities of each step's tokens, by id of the requests that asked for them."""
        of_steps: list[dict[str, TokenLogprobs]] = [{} for _ in output.tokens]
        if output.scored is None:
            return of_steps
        asking = [index for index, request in enumerate(requests) if request.params.logprobs is not None]
        places = [
            (step, index, place)
            for step, tokens in enumerate(output.tokens)
            for place, index in enumerate(asking)
            if tokens[index] != ENDED
        ]
        scored = self.sampler.score_tokens(
            [requests[index] for _step, index, _place in places],
            [output.tokens[step][index] for step, index, _place in places],
            output.scored[[place for _step, _index, place in places], [step for step, _index, _place in places]],
        )
        for (step, index, _place), scores in zip(places, scored, strict=True):
            of_steps[step][requests[index].id] = scores
        return of_steps

    def _scored_bytes(self, plan: StepPlan, max_steps: int) -> int:
        """Returns the memory for the logits of replies with log-probabilities."""
        num_scored = sum([chunk.request.params.logprobs is not None for chunk in plan.sampling])
        return num_scored * max_steps * self.runner.vocab_size * 4
