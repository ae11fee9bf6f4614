"""Steps that overlap: while the device computes one, the next is planned, prepared and queued behind it.

What a step samples stays on the device, where the next step finds its input, and comes to the host in its own time.
So the device goes from step to step without waiting for the host (the idea is SGLang's and mini-sglang's). The
price: the next step is planned before anybody knows whose reply has just ended, and computes a row too many for
each. That row is thrown away when its step has landed, and only then its blocks are given up.

Everything runs on one stream, in the order in which it was queued; nothing else writes to what a step reads.

A step overlaps the one before it when the device alone can sample its tokens: from scores as the model gives them,
without log-probabilities. Any other step waits until the one before it has landed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

import torch
from torch import Tensor

from engine.execution.batch import Carried
from engine.execution.fault_isolation import find_failing_rows
from engine.execution.runner import Runner
from engine.execution.submission import Submission
from engine.sampling.async_sampler import Drawn, draw_again, draw_unread
from engine.sampling.sampler import SamplingRow, uniform
from engine.sampling_params import SamplingParams
from engine.scheduling.scheduler import Scheduler, StepPlan

_PLAIN = SamplingRow(
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
"""Takes the place of a row whose own parameters cannot be computed, until its request ends."""


class Reading(Protocol):
    """A tensor on its way to the host."""

    def wait(self) -> list[list[int]]:
        """Its numbers, once the device has computed them."""
        ...


class Readback(Protocol):
    """Brings numbers from the device without holding up whoever asks for them."""

    def start(self, numbers: Tensor) -> Reading:
        """Begin to copy int64 ``[m, n]``, behind what the device has been given to do."""
        ...


class CudaReadback:
    """Copies into pinned memory, with an event behind."""

    def start(self, numbers: Tensor) -> _CudaReading:
        on_host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        on_host.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return _CudaReading(on_host, event)


@dataclass(frozen=True, slots=True)
class _CudaReading:
    on_host: Tensor
    event: torch.cuda.Event

    def wait(self) -> list[list[int]]:
        self.event.synchronize()
        numbers: list[list[int]] = self.on_host.tolist()
        return numbers


@dataclass(slots=True)
class _Launched:
    """A step that the device has been given."""

    plan: StepPlan
    rows: Sequence[SamplingRow]
    drawn: Drawn
    reading: Reading
    began: float
    failed: Mapping[str, Exception] = field(default_factory=dict)  #: requests whose own parameters cannot be computed
    void: set[str] = field(default_factory=set)  #: requests whose input turned out to be wrong


@dataclass(frozen=True, slots=True)
class Landed:
    """A step that is over. To be committed, once those whose scores are unusable have been ended."""

    launched: StepPlan
    void: Set[str]  #: ids of requests whose chunk in it was for nothing
    tokens: Mapping[str, int]  #: of each request that was going on
    unusable: tuple[str, ...]  #: of these the ones that cannot: the model gave no usable scores
    failed: Mapping[str, Exception]  #: those whose own parameters cannot be computed; to be ended, too
    seconds: float  #: that the device had for this step alone

    @property
    def plan(self) -> StepPlan:
        """What is to be committed."""
        if not self.void:
            return self.launched
        return replace(self.launched, chunks=tuple([c for c in self.launched.chunks if c.request.id not in self.void]))


class Overlap:
    """The steps on the device: none, one, or for a moment two.

    Args:
        readback: brings tokens to the host.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, readback: Readback) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._readback = readback
        self._steps: deque[_Launched] = deque()
        self._landed_at = 0.0

    @property
    def is_short(self) -> bool:
        """The last step lacks some who run: it must land before blocks can be found for them."""
        return bool(self._steps) and self._steps[-1].plan.is_short

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """Of the steps that have not landed, the earliest first."""
        return tuple([step.plan for step in self._steps])

    def serves(self, plan: StepPlan, submissions: Mapping[str, Submission]) -> bool:
        """Can it be computed without the host?"""
        if any(chunk.scored for chunk in plan.chunks):
            return False
        return not any(
            chunk.request.forks
            or chunk.request.params.logprobs is not None
            or submissions[chunk.request.id].sampling.adjusts
            for chunk in plan.sampling
        )

    def launch(self, plan: StepPlan, submissions: Mapping[str, Submission]) -> None:
        """Queue a step behind those that were launched before it."""
        began = monotonic()
        rows = [submissions[chunk.request.id].sampling for chunk in plan.sampling]
        carried = _carried(plan, self._steps[-1]) if self._steps else None
        logits = self._runner.execute(plan, carried)
        # Positions as they will be: what a row knows of its text may lack the newest token.
        noise = [
            uniform(row.seed, chunk.end - row.num_prompt_tokens) for chunk, row in zip(plan.sampling, rows, strict=True)
        ]
        failed: dict[str, Exception] = {}
        try:
            drawn = draw_unread(logits, rows, noise)
        except Exception as error:
            failing = find_failing_rows(
                error, logits, lambda at: draw_unread(logits[at : at + 1], [rows[at]], [noise[at]])
            )
            failed = {plan.sampling[at].request.id: cause for at, cause in failing.items()}
            rows = [_PLAIN if at in failing else row for at, row in enumerate(rows)]
            drawn = draw_unread(logits, rows, noise)
        reading = self._readback.start(torch.stack([drawn.tokens, drawn.usable.long(), drawn.settled.long()]))
        self._scheduler.in_flight.launch(plan)
        self._steps.append(_Launched(plan, rows, drawn, reading, began, failed))

    def land(self) -> Landed:
        """Wait for the earliest step, and read its tokens."""
        step = self._steps[0]
        tokens, usable, settled = step.reading.wait()
        now = monotonic()
        seconds, self._landed_at = now - max(step.began, self._landed_at), now
        self._steps.popleft()
        requests = [chunk.request for chunk in step.plan.sampling]
        counting = [not request.is_finished and request.id not in step.void for request in requests]
        again = [index for index, counts in enumerate(counting) if counts and usable[index] and not settled[index]]
        if again:
            self._draw_again(step, again, tokens)
        for request, fit in zip(requests, usable, strict=True):
            if request.is_finished and not fit:
                self._scheduler.in_flight.distrust(request)
        going_on = [index for index, counts in enumerate(counting) if counts]
        return Landed(
            launched=step.plan,
            void=step.void,
            tokens={requests[index].id: tokens[index] for index in going_on},
            unusable=tuple([requests[index].id for index in going_on if not usable[index]]),
            failed=step.failed,
            seconds=seconds,
        )

    def _draw_again(self, step: _Launched, indices: Sequence[int], tokens: list[int]) -> None:
        """Set right the tokens of rows that were not settled; what was computed from wrong ones is void."""
        (drawn,) = self._readback.start(draw_again(step.drawn, step.rows, indices).unsqueeze(0)).wait()
        for index, token in zip(indices, drawn, strict=True):
            if token == tokens[index]:
                continue
            tokens[index] = token
            request = step.plan.sampling[index].request
            for later in self._steps:
                for chunk in later.plan.chunks:
                    if chunk.request is request:
                        later.void.add(request.id)
                        self._scheduler.in_flight.void(chunk)


def _carried(plan: StepPlan, before: _Launched) -> Carried:
    """Where the tokens that ``before`` samples belong in a plan."""
    row_of = {chunk.request.id: index for index, chunk in enumerate(before.plan.sampling)}
    sources: list[int] = []
    targets: list[int] = []
    num_packed = 0
    for chunk in plan.chunks:
        num_packed += len(chunk.token_ids)
        if chunk.end > len(chunk.request.token_ids):
            sources.append(row_of[chunk.request.id])
            targets.append(num_packed - 1)
    return Carried(before.drawn.tokens, tuple(sources), tuple(targets))
