"""Overlapped steps: plans, prepares and queues step N+1 while the device computes step N.

Sampled tokens stay on the device, where the next step reads them, and are copied to the host asynchronously. So the
device goes from step to step without waiting for the host (the idea is SGLang's and mini-sglang's). The price: the
next step is planned before the host knows which replies have just ended, and computes one row too many for each of
them. That row is discarded when its step completes, and only then are its blocks released.

A token may be provisional (``exact`` is false: its sampling needed more candidates than the device kept). It is sampled
again when its step completes; if it changes, what a later launched step computed from it is invalidated.

Everything runs on one stream, in the order in which it was queued; nothing else writes to what a step reads.

A step overlaps the previous one if the device alone can sample its tokens: from the model's unadjusted logits,
without log-probabilities. Any other step waits until the previous one has completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

import torch
from torch import Tensor

from engine.execution.batch import FutureTokens
from engine.execution.fault_isolation import find_failing_rows
from engine.execution.runner import Runner
from engine.execution.submission import Submission
from engine.sampling.async_sampler import SampledTokens, resample, sample_async
from engine.sampling.sampler import SamplingRow, uniform
from engine.sampling_params import SamplingParams
from engine.scheduling.scheduler import Scheduler, StepPlan

_GREEDY_ROW = SamplingRow(
    "plain",
    SamplingParams(
        temperature=0,
        top_p=1,
        top_k=0,
        min_p=0,
        typical_p=1,
        repetition_penalty=1,
        presence_penalty=0,
        frequency_penalty=0,
    ),
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
    """Copies numbers from the device to the host without blocking the caller."""

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


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that has completed. Commit it after ending the requests in ``unusable`` and ``failed``."""

    launched: StepPlan
    invalidated: Set[str]  #: ids of requests whose chunk was computed from a token that was corrected later
    tokens: Mapping[str, int]  #: by request id, for each request that is still active
    unusable: tuple[str, ...]  #: ids of active requests for which the model gave no usable logits; to be ended
    failed: Mapping[str, Exception]  #: by id, requests whose own parameters cannot be computed; to be ended, too
    seconds: float  #: spent on this step alone, by the host's clock

    @property
    def plan(self) -> StepPlan:
        """The plan to commit: as launched, without the invalidated chunks."""
        if not self.invalidated:
            return self.launched
        return replace(
            self.launched, chunks=tuple([c for c in self.launched.chunks if c.request.id not in self.invalidated])
        )


class Overlap:
    """The launched steps: none, one, or two between :meth:`launch` and :meth:`complete_step`.

    Args:
        readback: copies tokens to the host.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, readback: Readback) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._readback = readback
        self._steps: deque[_LaunchedStep] = deque()
        self._completed_at = 0.0

    @property
    def must_drain(self) -> bool:
        """Whether the newest step leaves requests out for whose blocks or seats it must complete first."""
        return bool(self._steps) and self._steps[-1].plan.must_drain

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """Plans of the steps that have not completed, the earliest first."""
        return tuple([step.plan for step in self._steps])

    def can_run(self, plan: StepPlan, submissions: Mapping[str, Submission]) -> bool:
        """Whether the device can compute the step and sample from it without the host."""
        if any(chunk.scored for chunk in plan.chunks):
            return False
        return not any(
            chunk.request.forks
            or chunk.request.params.logprobs is not None
            or submissions[chunk.request.id].sampling.adjusts_logits
            for chunk in plan.sampling
        )

    def launch(self, plan: StepPlan, submissions: Mapping[str, Submission]) -> None:
        """Queues a step behind the steps that were launched before it."""
        began = monotonic()
        rows = [submissions[chunk.request.id].sampling for chunk in plan.sampling]
        future_tokens = _future_tokens(plan, self._steps[-1]) if self._steps else None
        logits = self._runner.execute(plan, future_tokens)
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
        reading = self._readback.start(torch.stack([sampled.tokens, sampled.usable.long(), sampled.exact.long()]))
        self._scheduler.in_flight.launch(plan)
        self._steps.append(_LaunchedStep(plan, rows, sampled, reading, began, failed))

    def complete_step(self) -> CompletedStep:
        """Waits for the earliest step and returns it with its tokens."""
        step = self._steps[0]
        tokens, usable, exact = step.reading.wait()
        now = monotonic()
        seconds, self._completed_at = now - max(step.began, self._completed_at), now
        self._steps.popleft()
        requests = [chunk.request for chunk in step.plan.sampling]
        is_active = [not request.is_finished and request.id not in step.invalidated for request in requests]
        again = [index for index, active in enumerate(is_active) if active and usable[index] and not exact[index]]
        if again:
            self._resample(step, again, tokens)
        for request, is_usable in zip(requests, usable, strict=True):
            if request.is_finished and not is_usable:
                self._scheduler.in_flight.taint(request)  # its blocks may hold NaN
        active_rows = [index for index, active in enumerate(is_active) if active]
        return CompletedStep(
            launched=step.plan,
            invalidated=step.invalidated,
            tokens={requests[index].id: tokens[index] for index in active_rows},
            unusable=tuple([requests[index].id for index in active_rows if not usable[index]]),
            failed=step.failed,
            seconds=seconds,
        )

    def _resample(self, step: _LaunchedStep, indices: Sequence[int], tokens: list[int]) -> None:
        """Corrects the tokens of rows that were not exact, and invalidates chunks computed from wrong tokens."""
        (resampled,) = self._readback.start(resample(step.sampled, step.rows, indices).unsqueeze(0)).wait()
        for index, token in zip(indices, resampled, strict=True):
            if token == tokens[index]:
                continue
            tokens[index] = token
            request = step.plan.sampling[index].request
            for later in self._steps:
                for chunk in later.plan.chunks:
                    if chunk.request is request:
                        later.invalidated.add(request.id)
                        self._scheduler.in_flight.invalidate(chunk)


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
