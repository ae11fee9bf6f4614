"""Multi-step decoding: one C++ call computes several decode steps, each from the tokens the previous one sampled.

Avoids reacquiring the GIL between decode steps. Where other threads compete for it, such as those that serve pages,
the engine would wait for the GIL longer than it computes. The output batcher holds a reply's text for a moment anyway
(:mod:`engine.runtime.output_batcher`), and no step is added that would not end within that time. So a single reader
gets each token by itself, and sixty readers get two or three at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.scheduling.coalescing import max_hold_seconds
from engine.scheduling.lookahead import reserve_blocks
from engine.scheduling.scheduler import Chunk, Scheduler, StepPlan

if TYPE_CHECKING:
    from torch import Tensor

    from engine.execution.submission import Submission
    from engine.sampling.sampler import SamplingRow
    from engine.scheduling.request import Request

ENDED = -1
"""Stands in place of a token for a reply that has ended."""
MAX_STEPS = 4
"""Steps per call. A request that arrives meanwhile waits for the last of them."""


class DecodeTimes(Protocol):
    """How long decode steps take."""

    def decode_seconds(self, decodes: int) -> float | None:
        """Returns the duration of a step of this many decodes and nothing else; None if it is not known yet."""
        ...


class MultiStepRow(NamedTuple):
    """A reply that a step samples a token for, and how far it may go."""

    sampling: SamplingRow
    stop_token_ids: frozenset[int]
    chunk: int  #: index of its chunk in the plan
    max_tokens: int  #: tokens that may be sampled, at least 1; all but the last have their blocks reserved


class MultiStepOutput(NamedTuple):
    """Results of several steps; fewer than ``max_steps`` if all replies ended or a step's logits were unusable."""

    tokens: list[list[int]]  #: for each step, one token per reply; :data:`ENDED` for replies that had ended
    seconds: list[float]  #: for each step, seconds from the start of the first step until its tokens were known
    logits: Tensor  #: the first step's logits if even those were unusable, otherwise not to be read


class ComputedStep(NamedTuple):
    """One of several steps, in the form of a step that was planned and computed by itself."""

    plan: StepPlan
    tokens: Mapping[str, int]  #: by request id
    seconds: float  #: its duration
    at: float  #: when its tokens were known, on the clock of ``began``


class MultiStep:
    """Decides how many steps one call computes.

    Args:
        scheduler: makes the plans.
        times: step durations, learned from earlier steps.
        max_native_tokens: most tokens of a step that C++ can continue from.
    """

    def __init__(self, scheduler: Scheduler, times: DecodeTimes, max_native_tokens: int) -> None:
        self._scheduler = scheduler
        self._times = times
        self._max_native_tokens = max_native_tokens

    def max_steps(self, submissions: Mapping[str, Submission]) -> int:
        """Returns how many steps end within the time that a delta may be held; 1 if the host must see each token."""
        decodes = self._scheduler.num_running
        seconds = self._times.decode_seconds(decodes) if decodes else None
        if seconds is None:
            return 1
        max_steps = min(MAX_STEPS, 1 + int(max_hold_seconds(decodes) / max(seconds, 1e-6)))
        return max_steps if max_steps > 1 and _can_sample_ahead(self._scheduler.running, submissions) else 1

    def can_run(self, plan: StepPlan, submissions: Mapping[str, Submission]) -> bool:
        """Whether C++ can continue from this step: it samples tokens, and none of them needs the host."""
        return (
            bool(plan.sampling)
            and plan.num_tokens <= self._max_native_tokens
            and not any(chunk.scored for chunk in plan.chunks)
            and _can_sample_ahead([chunk.request for chunk in plan.sampling], submissions)
        )

    def extend(
        self, plan: StepPlan, max_steps: int, submissions: Mapping[str, Submission]
    ) -> tuple[StepPlan, list[MultiStepRow]]:
        """Returns the plan with blocks for the following steps, and how far each of its replies may go."""
        chunks: list[Chunk] = []
        replies: list[MultiStepRow] = []
        for index, chunk in enumerate(plan.chunks):
            if chunk.samples:
                request = chunk.request
                wanted = min(max_steps, request.max_tokens - request.num_output_tokens)
                chunk, further = reserve_blocks(self._scheduler, chunk, wanted - 1)
                sampling = submissions[request.id].sampling
                replies.append(MultiStepRow(sampling, request.stop_token_ids, index, 1 + further))
            chunks.append(chunk)
        return replace(plan, chunks=tuple(chunks)), replies

    def computed_steps(self, plan: StepPlan, output: MultiStepOutput, began: float) -> Iterator[ComputedStep]:
        """Yields the steps in ``output``. Each must be committed before the next one is requested.

        Args:
            plan: the first step.
            began: when the first step began.
        """
        chunks, before, earlier = list(plan.sampling), [ENDED], 0.0
        for number, (tokens, seconds) in enumerate(zip(output.tokens, output.seconds, strict=True)):
            going = [index for index, token in enumerate(tokens) if token != ENDED]
            if number:
                for index in going:
                    end = chunks[index].end
                    chunks[index] = chunks[index]._replace(start=end, end=end + 1, token_ids=(before[index],))
                plan = StepPlan(tuple([chunks[index] for index in going]), num_decodes=len(going))
                self._scheduler.counters.steps += 1
            sampled = {chunks[index].request.id: tokens[index] for index in going}
            yield ComputedStep(plan, sampled, seconds - earlier, began + seconds)
            before, earlier = tokens, seconds


def _can_sample_ahead(requests: Iterable[Request], submissions: Mapping[str, Submission]) -> bool:
    """Whether the next token can be sampled before the host knows the current one."""
    for request in requests:
        row = submissions[request.id].sampling
        if row.adjusts_logits or row.typical_p != 1 or request.forks or request.params.logprobs is not None:
            return False
    return True
