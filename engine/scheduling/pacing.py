"""How much of a prompt a step reads while replies are being written: as much as keeps those replies flowing.

Nothing is assumed of the machine. What a step takes is learned from the steps themselves, by their size: what decodes
take alone, and what prompt tokens add to them. Medians of the latest steps are what counts, so a step in which the
machine stood still changes nothing. Between sizes that were seen the time is taken to grow evenly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

MAX_STEP_RATIO = 1.7
"""A step that reads a prompt beside decodes takes so many times what the decodes take alone.

The prompt then has 0.7 / 1.7 = 41 % of the machine: where time grows evenly with the tokens, it takes 2.4 times as long
to read as alone.
"""
MAX_PREFILL_SLOWDOWN = 5.0
"""A prompt token takes at most so many times what it would in steps that read fastest, however short decodes are."""
TILE_ROWS = 16
"""Of a tile: matrix units compute so many rows at once, so steps are made of whole tiles."""
MIN_ROUNDED_SHARE = 0.75
"""Of the tokens with which a step is worth what it takes, what whole tiles may leave."""
SAMPLES_PER_SIZE = 5
"""Of each size that are remembered."""
MIN_STEP_SECONDS = 1e-6
"""Seconds. A coarse clock may say that a step took no time at all, by which nothing could be divided."""
PROBE_INTERVAL = 32
"""Each so many steps takes more than the others, so that a size that was slow once is not avoided for ever."""


class Pacing:
    """Learns from each step, and says how many prompt tokens the next one may take.

    Args:
        max_batched_tokens: token budget of a step.
    """

    def __init__(self, max_batched_tokens: int) -> None:
        self._budget = max_batched_tokens
        self._decodes: dict[int, deque[float]] = {}  # seconds, by number of decodes, in powers of two
        self._prompts: dict[tuple[int, int], deque[_Point]] = {}  # by number of tokens, in halves of powers of two
        self._curve: dict[tuple[int, int], _Point] = {}  # their medians
        self._mixed_steps = 0

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            decodes: replies that it continued.
            prompt_tokens: all other tokens that it computed.
            seconds: what it took.
        """
        seconds = max(seconds, MIN_STEP_SECONDS)
        if prompt_tokens == 0:
            self._decodes.setdefault(decodes.bit_length(), deque(maxlen=SAMPLES_PER_SIZE)).append(seconds)
            return
        self._mixed_steps += decodes > 0
        # Weights are read in every step: prompts alone add what their step takes beyond that of one decode.
        alone = self.decode_seconds(max(decodes, 1)) or 0.0
        bits = prompt_tokens.bit_length()
        size = (bits, prompt_tokens << 2 >> bits)
        points = self._prompts.setdefault(size, deque(maxlen=SAMPLES_PER_SIZE))
        added = max(seconds - alone, 0.0)
        if points and added < self._curve[size].seconds / 2:
            points.clear()  # nothing makes a single step quicker than it should be
        points.append(_Point(prompt_tokens, added))
        self._curve[size] = _Point(median([one.tokens for one in points]), median([one.seconds for one in points]))

    def max_prompt_tokens(self, decodes: int, prompts: int, steps: int = 1) -> int:
        """Most prompt tokens of the next step: at least 1, with the decodes at most ``max_batched_tokens``.

        Who waits for a reply to begin counts as much as who reads one: where more wait than read, a step may take
        longer in proportion.

        Args:
            decodes: replies that it continues; at least 1, and less than ``max_batched_tokens``.
            prompts: requests whose prompts could be read in it; at least 1.
            steps: that are computed before the next ones can be read; what these take may be longer in proportion.
        """
        wanted, min_tokens = 2.0 * TILE_ROWS, 0.0
        alone = self.decode_seconds(decodes)
        if alone is not None and self._curve:
            curve = [_Point(0, 0.0), *sorted(self._curve.values())]
            within = _tokens_within(curve, (MAX_STEP_RATIO - 1) * alone * max(steps, prompts / decodes))
            min_tokens = _min_worthwhile_tokens(curve, alone)
            wanted = max(within, min_tokens)
        if self._mixed_steps % PROBE_INTERVAL == PROBE_INTERVAL - 1:
            wanted = max(1.5 * wanted, wanted + TILE_ROWS)
        rows = int(wanted + decodes) // TILE_ROWS * TILE_ROWS
        if rows - decodes < max(TILE_ROWS / 2, MIN_ROUNDED_SHARE * min_tokens):
            rows += TILE_ROWS
        return min(rows, self._budget) - decodes

    def decode_seconds(self, decodes: int) -> float | None:
        """Of a step of so many decodes; where none was seen, of fewer rather than of more."""
        size = decodes.bit_length()
        nearest = min(self._decodes, key=lambda known: (known > size, abs(known - size)), default=None)
        return None if nearest is None else median(self._decodes[nearest])


class _Point(NamedTuple):
    """So many prompt tokens add so many seconds to a step."""

    tokens: float
    seconds: float


def _tokens_within(curve: Sequence[_Point], seconds: float) -> float:
    """The most that add no more than ``seconds``; at most twice as many as were seen."""
    last = curve[-1]
    if last.seconds <= seconds:
        return last.tokens * min(2.0, seconds / last.seconds) if last.seconds else 2 * last.tokens
    for before, behind in reversed(list(pairwise(curve))):
        if before.seconds <= seconds < behind.seconds:
            share = (seconds - before.seconds) / (behind.seconds - before.seconds)
            return before.tokens + share * (behind.tokens - before.tokens)
    raise AssertionError("a curve begins at 0 seconds")


def _min_worthwhile_tokens(curve: Sequence[_Point], alone: float) -> float:
    """The fewest with which a step is worth what it takes, by :data:`MAX_PREFILL_SLOWDOWN`."""
    seconds_per_token = MAX_PREFILL_SLOWDOWN * min((alone + point.seconds) / point.tokens for point in curve[1:])
    surplus = -alone
    for before, behind in pairwise(curve):
        following = seconds_per_token * behind.tokens - alone - behind.seconds
        if following >= 0:
            return before.tokens + (behind.tokens - before.tokens) * -surplus / (following - surplus)
        surplus = following
    raise AssertionError("the size that reads fastest is worth it")
