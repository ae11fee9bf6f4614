"""Limits the prompt tokens in steps that also decode, so that the replies being decoded keep flowing.

Nothing is assumed about the machine. Step times are learned from the steps themselves, by size: the time of decodes
alone, and the time that prompt tokens add. The median of the latest steps counts, so a single stall changes nothing.
Between measured sizes, times are interpolated linearly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

MAX_STEP_RATIO = 1.6
"""Duration that a mixed step aims to stay within while one reader waits, as a multiple of a decode-only step.

Whole tiles, one larger step in :data:`PROBE_INTERVAL`, more prompts than decodes and :data:`MAX_PREFILL_SLOWDOWN` may
exceed it.

The prompt then gets 0.6 / 1.6 = 38 % of the machine: if time grows linearly with tokens, its prefill takes 2.7 times
as long as alone.
"""
MAX_COUNTED_READERS = 4
"""Each reader who waits allows a mixed step another 0.6 decode-only steps, up to this many readers: a burst of prompts
is soon read, and so decodes together, while the replies before it keep about 29 % of their speed."""
MAX_PREFILL_SLOWDOWN = 5.0
"""Upper bound on a step's time per prompt token, as a multiple of the lowest measured. Takes precedence over
``MAX_STEP_RATIO`` where decodes are short."""
TILE_ROWS = 16
"""Rows that matrix units compute at once."""
MIN_ROUNDED_SHARE = 0.75
"""Rounding a chunk down to whole tiles keeps at least this share of the smallest worthwhile chunk; otherwise it is
rounded up."""
SAMPLES_PER_SIZE = 5
"""Latest steps that are remembered for each size."""
MIN_STEP_SECONDS = 1e-6
"""Lower bound on a step's measured duration: a coarse clock may report 0, and code divides by durations."""
PROBE_INTERVAL = 32
"""One in this many mixed steps is larger than the others, so that a size that was slow once is not avoided for ever."""


class Pacing:
    """Learns from each step how many prompt tokens the next one may have.

    Args:
        max_batched_tokens: token budget of a step.
        tile_rows: rows that this model computes at once here. Steps are rounded to whole tiles.
    """

    def __init__(self, max_batched_tokens: int, tile_rows: int = TILE_ROWS) -> None:
        self._budget = max_batched_tokens
        self._tile_rows = tile_rows
        self._decodes: dict[int, deque[float]] = {}  # seconds; a bucket for each power of two of decodes
        self._prompts: dict[tuple[int, int], deque[_Point]] = {}  # two buckets for each power of two of prompt tokens
        self._curve: dict[tuple[int, int], _Point] = {}  # medians of self._prompts
        self._mixed_steps = 0

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Records a step.

        Args:
            decodes: number of decodes in it.
            prompt_tokens: all other tokens that it computed.
            seconds: its duration.
        """
        seconds = max(seconds, MIN_STEP_SECONDS)
        if prompt_tokens == 0:
            self._decodes.setdefault(decodes.bit_length(), deque(maxlen=SAMPLES_PER_SIZE)).append(seconds)
            return
        self._mixed_steps += decodes > 0
        # Every step reads the weights, so a prompt-only step is charged only for its time beyond that of one decode.
        alone = self.decode_seconds(max(decodes, 1)) or 0.0
        bits = prompt_tokens.bit_length()
        size = (bits, prompt_tokens << 2 >> bits)
        points = self._prompts.setdefault(size, deque(maxlen=SAMPLES_PER_SIZE))
        added = max(seconds - alone, 0.0)
        if points and added < self._curve[size].seconds / 2:
            points.clear()  # disturbances only slow steps down, so the earlier samples are outdated
        points.append(_Point(prompt_tokens, added))
        self._curve[size] = _Point(median([one.tokens for one in points]), median([one.seconds for one in points]))

    def max_prompt_tokens(self, decodes: int, prompts: int, readers: int, steps: int = 1) -> int:
        """Returns the maximum number of prompt tokens in the next step.

        At least 1; together with the decodes at most ``max_batched_tokens``. A step may take longer the more readers
        wait: up to :data:`MAX_COUNTED_READERS`, and beyond them where more prompts wait than replies are decoded, since
        a prompt then counts as much as a reply.

        Args:
            decodes: decodes in the step; at least 1, and less than ``max_batched_tokens``.
            prompts: requests whose prompts could be computed in it; at least 1.
            readers: who wait for these prompts; at least 1.
            steps: number of steps computed before prompt tokens can be computed again. The time that prompt tokens may
                add grows in proportion.
        """
        tile = self._tile_rows
        wanted, min_tokens = 2.0 * tile, 0.0
        alone = self.decode_seconds(decodes)
        if alone is not None and self._curve:
            curve = [_Point(0, 0.0), *sorted(self._curve.values())]
            share = max(steps, min(readers, MAX_COUNTED_READERS), prompts / decodes)
            within = _tokens_within(curve, (MAX_STEP_RATIO - 1) * alone * share)
            min_tokens = _min_worthwhile_tokens(curve, alone)
            wanted = max(within, min_tokens)
        if self._mixed_steps % PROBE_INTERVAL == PROBE_INTERVAL - 1:
            wanted = max(1.5 * wanted, wanted + tile)
        rows = int(wanted + decodes) // tile * tile
        if rows - decodes < max(tile / 2, MIN_ROUNDED_SHARE * min_tokens):
            rows += tile
        return min(rows, self._budget) - decodes

    def decode_seconds(self, decodes: int) -> float | None:
        """Returns the duration of a decode-only step; None before any was measured.

        For a number of decodes that was not measured, that of the nearest lower one, else of the nearest higher one.
        """
        size = decodes.bit_length()
        nearest = min(self._decodes, key=lambda known: (known > size, abs(known - size)), default=None)
        return None if nearest is None else median(self._decodes[nearest])


class _Point(NamedTuple):
    """The seconds that a number of prompt tokens adds to a step."""

    tokens: float
    seconds: float


def _tokens_within(curve: Sequence[_Point], seconds: float) -> float:
    """Returns the largest number of prompt tokens that adds at most ``seconds``: at most twice the largest measured."""
    last = curve[-1]
    if last.seconds <= seconds:
        return last.tokens * min(2.0, seconds / last.seconds) if last.seconds else 2 * last.tokens
    for before, behind in reversed(list(pairwise(curve))):
        if before.seconds <= seconds < behind.seconds:
            share = (seconds - before.seconds) / (behind.seconds - before.seconds)
            return before.tokens + share * (behind.tokens - before.tokens)
    raise AssertionError("the curve starts at 0 seconds")


def _min_worthwhile_tokens(curve: Sequence[_Point], alone: float) -> float:
    """Returns the smallest number of prompt tokens in a step that satisfies :data:`MAX_PREFILL_SLOWDOWN`.

    Args:
        alone: seconds of the step without prompt tokens.
    """
    seconds_per_token = MAX_PREFILL_SLOWDOWN * min((alone + point.seconds) / point.tokens for point in curve[1:])
    surplus = -alone
    for before, behind in pairwise(curve):
        following = seconds_per_token * behind.tokens - alone - behind.seconds
        if following >= 0:
            return before.tokens + (behind.tokens - before.tokens) * -surplus / (following - surplus)
        surplus = following
    raise AssertionError("the fastest size satisfies MAX_PREFILL_SLOWDOWN")
