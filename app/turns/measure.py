"""The numbers under a reply: the engine's own where it gave them, the app's where the reply was cut short."""

from __future__ import annotations

import time

from app.domain.views import ReplyStats
from engine import Delta, FinishReason, Timings


class ReplyMeasure:
    """Watches the deltas of one reply go by. Starts counting when it is made."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._started = time.monotonic()
        self._first = self._last = self._started
        self._tokens = 0
        self._cached_prompt_tokens = 0

    def see(self, delta: Delta) -> None:
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

    def cut(self, reason: FinishReason) -> ReplyStats:
        """The numbers of a reply that did not reach its end."""
        gap = (self._last - self._first) / (self._tokens - 1) if self._tokens > 1 else 0.0
        return ReplyStats(
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_prompt_tokens,
            completion_tokens=self._tokens,
            ttft_ms=1000 * (self._first - self._started),
            itl_ms=1000 * gap,
            tokens_per_second=1 / gap if gap > 0 else 0.0,
            finish_reason=reason.value,
        )


def stats_from(timings: Timings, reason: FinishReason) -> ReplyStats:
    """The engine's own numbers."""
    return ReplyStats(
        prompt_tokens=timings.prompt_tokens,
        cached_prompt_tokens=timings.cached_prompt_tokens,
        completion_tokens=timings.completion_tokens,
        ttft_ms=1000 * timings.time_to_first_token_seconds,
        itl_ms=1000 * timings.inter_token_latency_seconds,
        tokens_per_second=timings.tokens_per_second,
        finish_reason=reason.value,
    )
