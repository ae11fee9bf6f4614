"""Measures the engine's recent utilisation. The worker's thread writes and any thread reads, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from engine.outputs import WINDOW_SECONDS, Utilisation


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Load of one step."""

    seconds: float  #: forward pass and sampling
    sequences: float  #: share of ``max_num_seqs``, 0..1
    tokens: float  #: share of ``max_batched_tokens``, 0..1
    prompt_tokens: int
    generated_tokens: int
    has_forward_pass: bool = True  #: False for tokens sampled from the logits of an earlier step: it adds no step


class _Second(NamedTuple):
    """Sums over one second of the clock."""

    second: int
    busy: float = 0.0
    steps: int = 0
    sequences: float = 0.0
    tokens: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    first_tokens: int = 0
    first_token_seconds: float = 0.0
    gaps: int = 0
    gap_seconds: float = 0.0


class UtilisationMeter:
    """Ring of one-second sums. Each slot is replaced as a whole, so other threads never read a half-updated one.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._ring = [_Second(-1)] * (WINDOW_SECONDS + 1)

    def observe_step(self, load: StepLoad) -> None:
        now, steps = self._now(), int(load.has_forward_pass)
        self._keep(
            now._replace(
                busy=now.busy + load.seconds,
                steps=now.steps + steps,
                sequences=now.sequences + steps * load.sequences,
                tokens=now.tokens + steps * load.tokens,
                prompt_tokens=now.prompt_tokens + steps * load.prompt_tokens,
                generated_tokens=now.generated_tokens + load.generated_tokens,
            )
        )

    def observe_first_token(self, seconds: float) -> None:
        now = self._now()
        self._keep(
            now._replace(first_tokens=now.first_tokens + 1, first_token_seconds=now.first_token_seconds + seconds)
        )

    def observe_token_gaps(self, count: int, seconds: float) -> None:
        """Adds ``count`` gaps between tokens, ``seconds`` in total."""
        now = self._now()
        self._keep(now._replace(gaps=now.gaps + count, gap_seconds=now.gap_seconds + seconds))

    def read(self) -> Utilisation:
        now = self._clock()
        window = min(float(WINDOW_SECONDS), max(now - self._began, 1e-3))
        past = [slot for slot in self._ring if slot.second > now - WINDOW_SECONDS - 1 and slot.second >= 0]
        steps = sum(slot.steps for slot in past)
        first_tokens = sum(slot.first_tokens for slot in past)
        gaps = sum(slot.gaps for slot in past)
        return Utilisation(
            # A step counts for the second in which it ends, so a step that began before the window can exceed it.
            device_busy=min(1.0, sum(slot.busy for slot in past) / window),
            batch_occupancy=sum(slot.sequences for slot in past) / steps if steps else 0.0,
            token_occupancy=sum(slot.tokens for slot in past) / steps if steps else 0.0,
            prompt_tokens_per_second=sum(slot.prompt_tokens for slot in past) / window,
            generation_tokens_per_second=sum(slot.generated_tokens for slot in past) / window,
            time_to_first_token_seconds=_mean(sum(slot.first_token_seconds for slot in past), first_tokens),
            inter_token_latency_seconds=_mean(sum(slot.gap_seconds for slot in past), gaps),
        )

    def _now(self) -> _Second:
        second = int(self._clock())
        slot = self._ring[second % len(self._ring)]
        return slot if slot.second == second else _Second(second)

    def _keep(self, slot: _Second) -> None:
        self._ring[slot.second % len(self._ring)] = slot


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
