"""Statistics of a reply: the engine's own timings if it reported them, else the app's, for a reply that was cut off."""

from __future__ import annotations

import time
from collections.abc import Sequence

from app.domain.views import ReplyStats
from engine import Delta, FinishReason, Timings

#: A finish reason in addition to the engine's :class:`FinishReason`: a stop string of the conversation's settings.
STOP_STRING = "stop_string"
#: Another one: the reply waits for the user's decision about calls of tools.
TOOL_CALLS = "tool_calls"


class ReplyMeasure:
    """Measures one reply from its deltas.

    A reply that calls tools has several rounds, each with a prompt of its own. Its statistics count the tokens written
    in all of them and the time that took, the prompt of the last, which holds the others, and the first round's way to
    its first token.
    """

    def __init__(self, prompt_tokens: int, *, tokenize_seconds: float | None = None) -> None:
        """``tokenize_seconds``: how long it took to render and tokenize the prompt."""
        self._tokenize_seconds = tokenize_seconds
        self._delivery_seconds: float | None = None  # of the last tokens
        self._prompt_tokens = prompt_tokens
        self.start()
        self._tokens = 0
        self._tokens_before = 0  # prompts and replies of earlier rounds
        self._round_tokens = 0
        self._gaps, self._gap_seconds = 0, 0.0  # between the tokens of earlier rounds
        self._cached_prompt_tokens: int | None = None
        self._queue_seconds: float | None = None  # before the first token of the reply

    def start(self) -> None:
        """Starts the clock: the engine gets the first prompt now."""
        self._started = time.monotonic()
        self._first_token_at = self._last_token_at = self._round_first_token_at = self._started

    def observe(self, delta: Delta) -> None:
        if delta.num_tokens:
            self._last_token_at = time.monotonic()
            if not self._tokens:
                self._first_token_at = self._last_token_at
                self._queue_seconds = delta.queue_seconds
            if not self._round_tokens:
                self._round_first_token_at = self._last_token_at
            self._tokens += delta.num_tokens
            self._round_tokens += delta.num_tokens
            if delta.sampled_at is not None:
                self._delivery_seconds = max(0.0, self._last_token_at - delta.sampled_at)
        if delta.cached_prompt_tokens is not None:
            self._cached_prompt_tokens = delta.cached_prompt_tokens

    def begin_round(self, prompt_tokens: int) -> None:
        """Starts another round, whose prompt has this many tokens."""
        self._gaps, self._gap_seconds = self._gaps_so_far()
        if self._round_tokens:
            self._tokens_before += self._prompt_tokens + self._round_tokens
        else:  # the prompt that was rendered at first is not computed
            self._tokenize_seconds = None
        self._prompt_tokens, self._round_tokens, self._cached_prompt_tokens = prompt_tokens, 0, None

    @property
    def is_first_round(self) -> bool:
        return self._tokens_before == 0

    @property
    def tokens(self) -> int:
        """Tokens computed so far, prompts and completions of all rounds."""
        return self._tokens_before + self._prompt_tokens + self._round_tokens

    def _gaps_so_far(self) -> tuple[int, float]:
        """How many tokens came after another one of their round, and the seconds between these."""
        if self._round_tokens < 2:
            return self._gaps, self._gap_seconds
        seconds = self._last_token_at - self._round_first_token_at
        return self._gaps + self._round_tokens - 1, self._gap_seconds + seconds

    def stats(self, timings: Timings, reason: str) -> ReplyStats:
        """Statistics of a reply of one round, from the engine's own timings of it."""
        return ReplyStats(
            prompt_tokens=timings.prompt_tokens,
            cached_prompt_tokens=timings.cached_prompt_tokens,
            completion_tokens=timings.completion_tokens,
            ttft_ms=1000 * timings.time_to_first_token_seconds,
            itl_ms=1000 * timings.inter_token_latency_seconds,
            tokens_per_second=timings.tokens_per_second,
            finish_reason=reason,
            tokenize_ms=_milliseconds(self._tokenize_seconds),
            queue_ms=_milliseconds(timings.queue_seconds),
            decode_ms=1000 * max(0.0, timings.total_seconds - timings.time_to_first_token_seconds),
            delivery_ms=_milliseconds(self._delivery_seconds),
            draft_tokens=timings.draft_tokens,
            accepted_draft_tokens=timings.accepted_draft_tokens,
        )

    def partial_stats(self, reason: FinishReason | str) -> ReplyStats:
        """Statistics of a reply that did not finish, or had several rounds, by the app's clock.

        Between its rounds tools ran and prompts were computed, which counts to no phase.
        """
        gaps, seconds = self._gaps_so_far()
        gap = seconds / gaps if gaps else 0.0
        return ReplyStats(
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_prompt_tokens,
            completion_tokens=self._tokens,
            ttft_ms=1000 * (self._first_token_at - self._started),
            itl_ms=1000 * gap,
            tokens_per_second=1 / gap if gap > 0 else 0.0,
            finish_reason=str(reason),
            tokenize_ms=_milliseconds(self._tokenize_seconds),
            queue_ms=_milliseconds(self._queue_seconds),
            decode_ms=1000 * seconds,
            delivery_ms=_milliseconds(self._delivery_seconds),
        )


def ending_of(delta: Delta, stop: Sequence[str]) -> str:
    """The finish reason as users see it. The engine reports the end-of-sequence token and a stop string both as STOP.

    Args:
        stop: the stop strings of the request.
    """
    assert delta.finish_reason is not None
    by_string = delta.finish_reason is FinishReason.STOP and delta.stop_reason in stop
    return STOP_STRING if by_string else str(delta.finish_reason)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
