"""The numbers under a reply: the engine's own where it gave them, the app's where the reply was cut short."""

from __future__ import annotations

import time
from collections.abc import Sequence

from app.domain.views import ReplyStats
from engine import Delta, FinishReason, Timings

#: Beside the engine's :class:`FinishReason`: a string that the conversation's settings name ended the reply.
STOP_STRING = "stop_string"


class ReplyMeasure:
    """Watches the deltas of one reply go by. Starts counting when it is made."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._started = time.monotonic()
        self._first = self._last = self._started
        self._tokens = 0
        self._cached_prompt_tokens: int | None = None

    def observe(self, delta: Delta) -> None:
        if delta.num_tokens:
            self._last = time.monotonic()
            if not self._tokens:
                self._first = self._last
            self._tokens += delta.num_tokens
        if delta.cached_prompt_tokens is not None:
            self._cached_prompt_tokens = delta.cached_prompt_tokens

    @property
    def tokens(self) -> int:
        """Read and written so far."""
        return self._prompt_tokens + self._tokens

    def partial_stats(self, reason: FinishReason | str) -> ReplyStats:
        """The numbers of a reply that did not reach its end."""
        gap = (self._last - self._first) / (self._tokens - 1) if self._tokens > 1 else 0.0
        return ReplyStats(
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_prompt_tokens,
            completion_tokens=self._tokens,
            ttft_ms=1000 * (self._first - self._started),
            itl_ms=1000 * gap,
            tokens_per_second=1 / gap if gap > 0 else 0.0,
            finish_reason=str(reason),
        )


def ending_of(delta: Delta, stop: Sequence[str]) -> str:
    """Why a reply has ended, as people are told it. The engine calls the model's own end and a stop string alike.

    Args:
        stop: the stop strings that it was asked with.
    """
    assert delta.finish_reason is not None
    by_string = delta.finish_reason is FinishReason.STOP and delta.stop_reason in stop
    return STOP_STRING if by_string else str(delta.finish_reason)


def stats_from(timings: Timings, reason: str) -> ReplyStats:
    """The engine's own numbers."""
    return ReplyStats(
        prompt_tokens=timings.prompt_tokens,
        cached_prompt_tokens=timings.cached_prompt_tokens,
        completion_tokens=timings.completion_tokens,
        ttft_ms=1000 * timings.time_to_first_token_seconds,
        itl_ms=1000 * timings.inter_token_latency_seconds,
        tokens_per_second=timings.tokens_per_second,
        finish_reason=reason,
    )
