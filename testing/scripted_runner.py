"""Runner whose logits follow a script instead of a model, on a clock that only steps advance.

Every number in a trace then comes from the engine's own decisions and does not depend on a CPU's rounding or a
machine's speed. Scores are exact in float32, and no two scores of a row are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.execution.batch import FutureTokens
from engine.execution.native.multi_step import ENDED, Host, MultiStepOutput, MultiStepRow
from engine.execution.runner import Runner
from engine.sampling import cpu
from engine.sampling.sampler import Sampler, SamplingRow
from engine.scheduling.step_plan import StepPlan
from testing.delayed_device import DelayedDevice, DelayedReading

CYCLE = 9
"""Tokens after which greedy replies repeat, so that prompt lookup drafts the right tokens."""
SLIP = 13
"""At multiples of this position the likeliest token differs, and a draft token is rejected."""
STEP_SECONDS, TOKEN_SECONDS = 0.0002, 0.00005
"""Seconds that a step, and each token in it, takes on the scripted clock."""


@dataclass
class ScriptedClock:
    """A clock, in seconds, that only its users advance."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedDevice(DelayedDevice):
    """A delayed device whose waits advance the clock."""

    clock: ScriptedClock = field(default_factory=ScriptedClock)

    def start(self, numbers: Tensor) -> DelayedReading:
        return _ScriptedReading(**vars(super().start(numbers)))


class _ScriptedReading(DelayedReading):
    def wait(self) -> list[list[int]]:
        assert isinstance(self.device, ScriptedDevice)
        self.device.clock.now += STEP_SECONDS
        return super().wait()


@dataclass
class Script:
    """Defines logits by token and position, and injects faults.

    Args:
        failing_steps: numbers, from 0, of the steps that raise.
        broken: request id -> output token from which on the request's logits are NaN.
    """

    vocab_size: int
    clock: ScriptedClock
    device: DelayedDevice | None = None
    failing_steps: frozenset[int] = frozenset()
    broken: dict[str, int] = field(default_factory=dict)
    num_steps: int = 0
    plans: list[tuple[str, StepPlan]] = field(default_factory=list)  #: the executed plans, and how they ran
    is_native: bool = False  #: whether several steps may run in one call

    def logits(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Returns fp32 ``[n, vocab_size]``: the scores after each token at its position."""
        token, position = torch.tensor(tokens)[:, None], torch.tensor(positions)[:, None]
        ids = torch.arange(self.vocab_size)[None]
        scores = (ids * 37 + token * 101 + position * 13) % 64 / 16 + ids / 8192
        likeliest = 10 + (token * 4 + 1 + 3 * (position % SLIP == 0)) % CYCLE
        return torch.where(ids == likeliest, 5.0, scores).to(torch.float32)

    def begin_step(self, num_tokens: int) -> None:
        """Counts a step, advances the clock, and raises if the step is scripted to fail."""
        number, self.num_steps = self.num_steps, self.num_steps + 1
        self.clock.now += STEP_SECONDS + TOKEN_SECONDS * num_tokens
        if number in self.failing_steps:
            raise RuntimeError("this step fails, by the script")

    def execute(self, plan: StepPlan, future_tokens: FutureTokens | None = None) -> Tensor:
        """Replaces :meth:`engine.execution.runner.Runner.execute`."""
        self.plans.append(("launched" if future_tokens is not None else "computed", plan))
        self.begin_step(plan.num_tokens)
        rows = _sampled_rows(plan, self._read_future_tokens(plan, future_tokens))
        scored = [(chunk.request.token_ids[at], at) for chunk in plan.chunks for at in chunk.scored]
        logits = self.logits(*zip(*(rows + scored), strict=True)) if rows + scored else torch.empty(0, self.vocab_size)
        row = 0
        for chunk in plan.sampling:
            from_token = self.broken.get(chunk.request.id)
            if from_token is not None and chunk.end - chunk.request.num_prompt_tokens >= from_token:
                logits[row : row + 1 + len(chunk.draft)] = float("nan")
            row += 1 + len(chunk.draft)
        return logits

    def execute_steps(
        self,
        plan: StepPlan,
        replies: Sequence[MultiStepRow],
        max_steps: int,
        host: Host | None = None,
    ) -> MultiStepOutput:
        """Replaces :meth:`engine.execution.runner.Runner.execute_steps`: the decoder's loop in Python."""
        began = self.clock.now
        tokens: list[list[int]] = []
        seconds: list[float] = []
        raw: list[Tensor] = []
        first = logits = self.execute(plan)
        self.plans[-1] = ("several", plan)
        ends = [plan.chunks[reply.chunk].end for reply in replies]
        lengths = [len(reply.sampling.token_ids) for reply in replies]
        native = [index for index, reply in enumerate(replies) if not reply.sampling.needs_python]
        while True:
            alive = [index for index, reply in enumerate(replies) if not tokens or _goes_on(reply, index, tokens)]
            mine = [index for index in native if index in alive]
            if not alive or not bool(torch.isfinite(logits[mine]).all()):
                break
            sampled = [ENDED] * len(replies)
            rows = [replies[index].sampling for index in mine]
            for index, token in zip(mine, _sample(logits[mine], rows), strict=True):
                sampled[index] = token
            hosted = [index for index in alive if index not in native]
            if hosted:
                assert host is not None
                try:
                    hosted_tokens = _sample_hosted(host, hosted, replies, tokens[-1] if tokens else None, logits)
                except EngineError:
                    break
                for index, token in zip(hosted, hosted_tokens, strict=True):
                    sampled[index] = token
            for index in mine:
                cast("list[int]", replies[index].sampling.token_ids).append(sampled[index])
            tokens.append(sampled)
            raw.append(logits)
            seconds.append(self.clock.now - began)
            if len(tokens) == max_steps:
                break
            alive = [index for index, reply in enumerate(replies) if _goes_on(reply, index, tokens)]
            if not alive:
                break
            self.clock.now += STEP_SECONDS + TOKEN_SECONDS * len(alive)
            logits = torch.zeros(len(replies), self.vocab_size)
            logits[alive] = self.logits(
                [tokens[-1][index] for index in alive], [ends[index] + len(tokens) - 1 for index in alive]
            )
            for index in alive:
                row = replies[index].sampling
                if row.position >= self.broken.get(row.request_id, sys.maxsize):
                    logits[index] = float("nan")
        for index in native:
            del cast("list[int]", replies[index].sampling.token_ids)[lengths[index] :]
        asking = [index for index, reply in enumerate(replies) if reply.is_scored]
        scored = torch.stack([logits[asking] for logits in raw], 1) if asking and raw else None
        return MultiStepOutput(tokens, seconds, first, scored)

    def _read_future_tokens(self, plan: StepPlan, future_tokens: FutureTokens | None) -> dict[int, int]:
        """Returns the tokens that are only on the device, by their packed row."""
        if future_tokens is None or not future_tokens.targets:
            return {}
        assert self.device is not None
        with self.device.reads_allowed():
            tokens: list[int] = future_tokens.tokens.tolist()
        return {row: tokens[source] for row, source in zip(future_tokens.targets, future_tokens.sources, strict=True)}

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Makes runners follow this script, and the engine read this clock, within the context."""
        with monkeypatch.context() as patch:
            patch.setattr(
                Runner, "execute", lambda _runner, plan, future_tokens=None: self.execute(plan, future_tokens)
            )
            patch.setattr(Runner, "execute_steps", lambda _runner, *args: self.execute_steps(*args))
            patch.setattr(Runner, "max_native_tokens", sys.maxsize if self.is_native else 0)
            for module in (
                "runtime.request_processor",
                "runtime.output_processor",
                "execution.steps.strategy",
                "execution.steps.multi_step",
                "execution.steps.overlapped",
                "execution.steps.speculative",
            ):
                patch.setattr(f"engine.{module}.monotonic", self.clock)
            yield self


def _sampled_rows(plan: StepPlan, future_tokens: dict[int, int]) -> list[tuple[int, int]]:
    """Returns token and position of each row that is sampled from, draft tokens included."""
    rows: list[tuple[int, int]] = []
    packed = 0
    for chunk in plan.chunks:
        packed += len(chunk.token_ids)
        if chunk.samples:
            rows.append((future_tokens.get(packed - 1, chunk.token_ids[-1]), chunk.end - 1))
            rows += [(token, chunk.end + index) for index, token in enumerate(chunk.draft)]
        packed += len(chunk.draft)
    return rows


def _goes_on(reply: MultiStepRow, index: int, tokens: Sequence[Sequence[int]]) -> bool:
    last = tokens[-1][index]
    return last != ENDED and last not in reply.stop_token_ids and len(tokens) < reply.max_tokens


def _sample_hosted(
    host: Host,
    hosted: Sequence[int],
    replies: Sequence[MultiStepRow],
    previous: Sequence[int] | None,
    logits: Tensor,
) -> list[int]:
    sampled = dict.fromkeys(hosted, ENDED)
    masked = [index for index in hosted if index in host.masks]
    for index in masked:
        if host.fill_mask(index, None if previous is None else previous[index]):
            allowed = np.unpackbits(host.masks[index], count=logits.shape[1], bitorder="little")
            scores = logits[[index]].masked_fill(torch.from_numpy(allowed == 0), -torch.inf)
            (sampled[index],) = _sample(scores, [replies[index].sampling])
    others = [index for index in hosted if index not in host.masks]
    if others:
        sampled |= zip(others, host.sample(others, logits[others]), strict=True)
    return list(sampled.values())


def _sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    return Sampler(cpu).sample(logits, rows)
