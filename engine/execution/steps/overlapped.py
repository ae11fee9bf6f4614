"""Overlapped steps: plans, prepares and queues step N+1 while the device computes step N.

Sampled tokens stay on the device, where the next step reads them, and are copied to the host asynchronously. So the
device goes from step to step without waiting for the host (the idea is SGLang's and mini-sglang's). The price: the
next step is planned before the host knows which replies have just ended, and computes one row too many for each of
them. That row is discarded when its step completes, and only then are its blocks released.

A token may be provisional (``final`` is false: its sampling needed more candidates than the device kept). It is sampled
again when its step completes; if it changes, what a later launched step computed from it is invalidated.

Everything runs on one stream, in the order in which it was queued; nothing else writes to what a step reads.

A step overlaps the previous one if the device alone can sample its tokens: from the model's unadjusted logits,
without log-probabilities. Any other step waits until the previous one has completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import EngineError
from engine.execution.batch import FutureTokens
from engine.execution.fault_isolation import as_request_error, find_failing_rows
from engine.execution.runner import Runner
from engine.execution.step_sampler import StepSampler
from engine.execution.steps.strategy import ComputedStep, StepStrategy
from engine.sampling.async_sampler import SampledTokens, resample, sample_async
from engine.sampling.sampler import SamplingRow, uniform, unusable_scores_error
from engine.sampling_params import SamplingParams
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import StepPlan

_GREEDY_ROW = SamplingRow(
    "plain",
    SamplingParams.neutral(temperature=0),
    seed=0,
    token_ids=(),
    num_prompt_tokens=0,
)
"""Replaces a row whose own parameters cannot be computed, until its request is ended."""


class PendingReadback(Protocol):
    """A tensor on its way to the host."""

    def wait(self) -> list[list[int]]:
        """Waits until the device has computed the numbers, and returns them."""
        ...


class Readback(Protocol):
    """Copies tokens and flags from the device to the host without blocking the caller."""

    def start(self, numbers: Tensor) -> PendingReadback:
        """Queues a copy of int64 ``[m, n]`` behind the device's queued work."""
        ...


class CudaReadback:
    """Copies into pinned memory, followed by an event to wait for."""

    def start(self, numbers: Tensor) -> _CudaPendingReadback:
        on_host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        on_host.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return _CudaPendingReadback(on_host, event)


@dataclass(frozen=True, slots=True)
class _CudaPendingReadback:
    on_host: Tensor
    event: torch.cuda.Event

    def wait(self) -> list[list[int]]:
        self.event.synchronize()
        numbers: list[list[int]] = self.on_host.tolist()
        return numbers


@dataclass(slots=True)
class _LaunchedStep:
    """A step that is queued on the device and has not completed."""

    plan: StepPlan
    rows: Sequence[SamplingRow]
    sampled: SampledTokens
    reading: PendingReadback
    began: float
    failed: Mapping[str, Exception] = field(default_factory=dict)  #: requests whose own parameters cannot be computed
    invalidated: set[str] = field(default_factory=set)  #: ids of requests whose input token was corrected later

    @property
    def valid_plan(self) -> StepPlan:
        """The plan to commit: as launched, without the invalidated chunks."""
        if not self.invalidated:
            return self.plan
        return replace(
            self.plan, chunks=tuple([chunk for chunk in self.plan.chunks if chunk.request.id not in self.invalidated])
        )


class OverlappedSteps(StepStrategy):
    """Launches each step before it reads back the one before: at most two are in flight, and one between calls.

    Args:
        readback: copies tokens to the host.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, sampler: StepSampler, readback: Readback) -> None:
        super().__init__(scheduler, runner, sampler)
        self._readback = readback
        self._launched: deque[_LaunchedStep] = deque()  # the earliest first
        self._completed_at = 0.0

    def advance(self) -> Iterator[ComputedStep]:
        if self._launched and self._launched[-1].plan.must_drain:
            # That plan left out requests whose blocks or seats are free only once it has completed.
            yield self._complete_step()
        plan, in_flight = self.plan(), [step.plan for step in self._launched]
        launches = bool(plan.chunks) and self._can_overlap(plan)
        if launches:
            self.record_requests(*in_flight, plan)  # if the device fails now, either step may be the cause
            self._launch(plan)
        if in_flight:
            yield self._complete_step()
        if launches:
            return
        if in_flight:  # the tokens that the plan had to leave open are known now, and some requests have ended
            plan = self.scheduler.in_flight.with_known_tokens(plan)
        if plan.chunks:
            yield self.compute(plan)

    def _can_overlap(self, plan: StepPlan) -> bool:
        """Whether the device can compute the step and sample from it without the host."""
        return not (
            any(chunk.scored for chunk in plan.chunks) or any(self.needs_host(chunk.request) for chunk in plan.sampling)
        )

    def _launch(self, plan: StepPlan) -> None:
        """Queues a step behind the steps that were launched before it."""
        began = monotonic()
        rows = [self.sampler.sampling_row(chunk.request) for chunk in plan.sampling]
        future_tokens = _future_tokens(plan, self._launched[-1]) if self._launched else None
        logits = self.runner.execute(plan, future_tokens)
        # The plan's positions, not the rows' own: a row's token ids may lack the newest token.
        noise = [
            uniform(row.seed, chunk.end - row.num_prompt_tokens) for chunk, row in zip(plan.sampling, rows, strict=True)
        ]
        failed: dict[str, Exception] = {}
        try:
            sampled = sample_async(logits, rows, noise)
        except Exception as error:
            failing = find_failing_rows(
                error, logits, lambda at: sample_async(logits[at : at + 1], [rows[at]], [noise[at]])
            )
            failed = {plan.sampling[at].request.id: cause for at, cause in failing.items()}
            rows = [_GREEDY_ROW if at in failing else row for at, row in enumerate(rows)]
            sampled = sample_async(logits, rows, noise)
        reading = self._readback.start(torch.stack([sampled.tokens, sampled.usable.long(), sampled.final.long()]))
        self.scheduler.in_flight.launch(plan)
        self._launched.append(_LaunchedStep(plan, rows, sampled, reading, began, failed))

    def _complete_step(self) -> ComputedStep:
        """Waits for the earliest launched step, and returns it with its tokens."""
        step = self._launched[0]
        tokens, usable, final = step.reading.wait()
        now = monotonic()
        seconds, self._completed_at = now - max(step.began, self._completed_at), now
        self._launched.popleft()
        requests = [chunk.request for chunk in step.plan.sampling]
        active = [
            index
            for index, request in enumerate(requests)
            if not request.is_finished and request.id not in step.invalidated
        ]
        again = [index for index in active if usable[index] and not final[index]]
        if again:
            self._resample(step, again, tokens)
        for request, is_usable in zip(requests, usable, strict=True):
            if request.is_finished and not is_usable:
                self.scheduler.in_flight.taint(request)  # its blocks may hold NaN
        failures = self._failures(step, [requests[index].id for index in active if not usable[index]])
        self.scheduler.in_flight.complete(step.plan, step.invalidated)
        return ComputedStep(
            step.valid_plan,
            {requests[index].id: tokens[index] for index in active},
            seconds=seconds,
            failures=failures,
        )

    def _failures(self, step: _LaunchedStep, unusable: Sequence[str]) -> dict[str, EngineError]:
        """Returns the errors of the streams to end, by stream id.

        Args:
            unusable: ids of active requests for which the model gave no usable logits.
        """
        failures: dict[str, EngineError] = {}
        if unusable:
            failures = dict.fromkeys(map(self.sampler.stream_id, unusable), unusable_scores_error(tuple(unusable)))
        for request_id, cause in step.failed.items():
            if self.scheduler.get(request_id) is not None:
                stream_id = self.sampler.stream_id(request_id)
                failures.setdefault(stream_id, as_request_error(stream_id, cause))
        return failures

    def _resample(self, step: _LaunchedStep, indices: Sequence[int], tokens: list[int]) -> None:
        """Corrects the tokens of rows that were not final, and invalidates chunks computed from wrong tokens."""
        (resampled,) = self._readback.start(resample(step.sampled, step.rows, indices).unsqueeze(0)).wait()
        for index, token in zip(indices, resampled, strict=True):
            if token == tokens[index]:
                continue
            tokens[index] = token
            request = step.plan.sampling[index].request
            for later in self._launched:
                for chunk in later.plan.chunks:
                    if chunk.request is request:
                        later.invalidated.add(request.id)
                        self.scheduler.in_flight.invalidate(chunk)


def _future_tokens(plan: StepPlan, before: _LaunchedStep) -> FutureTokens:
    """Returns where a plan's packed rows take the tokens that ``before`` samples."""
    row_of = {chunk.request.id: index for index, chunk in enumerate(before.plan.sampling)}
    sources: list[int] = []
    targets: list[int] = []
    num_packed = 0
    for chunk in plan.chunks:
        num_packed += len(chunk.token_ids)
        if chunk.end > len(chunk.request.token_ids):
            sources.append(row_of[chunk.request.id])
            targets.append(num_packed - 1)
    return FutureTokens(before.sampled.tokens, tuple(sources), tuple(targets))
