"""Token counts of a response, whole or so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine import Delta, Timings


def usage(
    choices: Mapping[int, Timings | None], replies: int, reasoning_tokens: int | None = None
) -> dict[str, Any] | None:
    """Returns the usage: prompt tokens (counted once per prompt), cached ones, and the tokens of all replies.

    Args:
        choices: timings by the choice's index.
        replies: number of replies per prompt.
        reasoning_tokens: those of all replies that are thinking; None leaves them out.
    """
    known = {index: timings for index, timings in choices.items() if timings is not None}
    if not known:
        return None
    prompts = {index // replies: timings for index, timings in known.items()}.values()
    return _usage(
        sum(timings.prompt_tokens for timings in prompts),
        sum(timings.completion_tokens for timings in known.values()),
        _total_cached(prompts),
        reasoning_tokens,
    )


class RunningUsage:
    """The usage so far of a running stream, for ``continuous_usage_stats``.

    Args:
        replies: number of replies per prompt.
    """

    def __init__(self, replies: int) -> None:
        self._replies = replies
        self._prompts: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._written = 0

    def note(self, delta: Delta, *, prompt_only: bool = False) -> None:
        """Adds a delta. ``prompt_only``: does not count its tokens yet, since they are sent with a later chunk."""
        prompt = delta.index // self._replies
        total = delta.progress.total if delta.progress is not None else delta.prompt_tokens
        if delta.timings is not None:
            total = delta.timings.prompt_tokens
        if total is not None:
            self._prompts[prompt] = total
        if delta.cached_prompt_tokens is not None:
            self._cached[prompt] = delta.cached_prompt_tokens
        if not prompt_only:
            self._written += delta.num_tokens

    def to_dict(self, reasoning_tokens: int | None = None) -> dict[str, Any]:
        cached = sum(self._cached.values()) if self._cached else None  # a remote model server may not report it
        return _usage(sum(self._prompts.values()), self._written, cached, reasoning_tokens)


def _total_cached(prompts: Iterable[Timings]) -> int | None:
    """Sums the cached prompt tokens; None if a remote model server does not report them."""
    counts = [timings.cached_prompt_tokens for timings in prompts]
    return None if None in counts else sum(count for count in counts if count is not None)


def _usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int | None, reasoning_tokens: int | None
) -> dict[str, Any]:
    details = {} if reasoning_tokens is None else {"completion_tokens_details": {"reasoning_tokens": reasoning_tokens}}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens} if cached_tokens is not None else None,
        **details,
    }
