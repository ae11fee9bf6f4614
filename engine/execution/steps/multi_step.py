"""Several steps before anybody looks: what a step samples is what the next one computes, all in one call of C++.

Python's lock is what it spares. After each step the engine has to have it again, and where other threads want it, such
as those that serve a page to many, the processor's arithmetic waits longer than it works. A reply's text waits for
others' anyway before it goes out (:mod:`engine.runtime.output_batcher`); no step is added that would not end within that time. So a
single reader has each token by itself, and sixty have two or three together.
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
"""In place of a token."""
MAX_STEPS = 4
"""Who comes meanwhile waits for the last of them."""


class DecodeTimes(Protocol):
    """What steps take."""

    def decode_seconds(self, decodes: int) -> float | None:
        """Of a step of so many decodes and nothing else; None where nothing is known."""
        ...


class MultiStepRow(NamedTuple):
    """One that a step samples a token for, and how it may go on."""

    sampling: SamplingRow
    stop_token_ids: frozenset[int]
    chunk: int  #: its index in the plan
    max_tokens: int  #: tokens that may be sampled, at least 1; for all but the last the blocks are there


class MultiStepOutput(NamedTuple):
    """What came of several steps; fewer than were wanted where all replies ended, or scores were of no use."""

    tokens: list[list[int]]  #: of each step one for each reply, :data:`ENDED` for those that had ended
    seconds: list[float]  #: since the first step began, when each step's tokens were known
    logits: Tensor  #: those of the first step, where even its scores were of no use


class ComputedStep(NamedTuple):
    """One of several steps, as if it had been planned and computed by itself."""

    plan: StepPlan
    tokens: Mapping[str, int]
    seconds: float  #: what it took
    at: float  #: when its tokens were known, on the clock of ``began``


class MultiStep:
    """Decides how many steps are computed at once.

    Args:
        scheduler: of the plans.
        times: learned from the steps before.
        max_native_tokens: of a step that C++ can go on from.
    """

    def __init__(self, scheduler: Scheduler, times: DecodeTimes, max_native_tokens: int) -> None:
        self._scheduler = scheduler
        self._times = times
        self._max_native_tokens = max_native_tokens

    def max_steps(self, submissions: Mapping[str, Submission]) -> int:
        """As many as end while a delta may wait for others; 1 where somebody looks at each token."""
        decodes = self._scheduler.num_running
        seconds = self._times.decode_seconds(decodes) if decodes else None
        if seconds is None:
            return 1
        max_steps = min(MAX_STEPS, 1 + int(max_hold_seconds(decodes) / max(seconds, 1e-6)))
        return max_steps if max_steps > 1 and _can_sample_ahead(self._scheduler.running, submissions) else 1

    def can_run(self, plan: StepPlan, submissions: Mapping[str, Submission]) -> bool:
        """Whether C++ can go on from this step: it brings tokens, and nobody looks at them."""
        return (
            bool(plan.sampling)
            and plan.num_tokens <= self._max_native_tokens
            and not any(chunk.scored for chunk in plan.chunks)
            and _can_sample_ahead([chunk.request for chunk in plan.sampling], submissions)
        )

    def extend(
        self, plan: StepPlan, max_steps: int, submissions: Mapping[str, Submission]
    ) -> tuple[StepPlan, list[MultiStepRow]]:
        """The plan with blocks for the steps behind it, and how far each of its replies may go."""
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
        """The steps of which ``output`` came. Each must be committed before the next one is asked for.

        Args:
            plan: the first of them.
            began: when it did.
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
    """Whether the next token can be sampled before the one before it is known here."""
    for request in requests:
        row = submissions[request.id].sampling
        if row.adjusts_logits or row.typical_p != 1 or request.forks or request.params.logprobs is not None:
            return False
    return True
