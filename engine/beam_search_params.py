"""The parameters of beam search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import InvalidRequestError

MAX_BEAM_WIDTH = 64
"""Maximum number of beams of one request; more are refused."""
MAX_LENGTH_PENALTY = 10.0
"""Bound of its absolute value, with which the power of no length leaves the range of floats; others are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Searches for the likeliest replies instead of sampling them, as transformers' ``generate(num_beams=...)``.

    Each step continues the ``width`` likeliest beginnings. A reply's score is the sum of its tokens' log-probabilities
    divided by its length to the power of ``length_penalty``.

    Args:
        width: number of beams, 1 to :data:`MAX_BEAM_WIDTH`.
        length_penalty: above 0 prefers longer replies, below 0 shorter ones; 0 compares the sums.
        early_stopping: when the search ends. True: as soon as ``width`` replies have ended. False: when the best beam's
            score, at its present length, is below all of theirs. "never": when no beam can become better at any length.

    Raises:
        InvalidRequestError: a value is out of range.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if isinstance(self.width, bool) or not isinstance(self.width, int) or not 1 <= self.width <= MAX_BEAM_WIDTH:
            raise InvalidRequestError(f"beam_width must be between 1 and {MAX_BEAM_WIDTH} (got {self.width!r})")
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not abs(penalty) <= MAX_LENGTH_PENALTY:
            allowed = f"between -{MAX_LENGTH_PENALTY:g} and {MAX_LENGTH_PENALTY:g}"
            raise InvalidRequestError(f"length_penalty must be {allowed} (got {penalty!r})")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequestError(f'early_stopping must be true, false or "never" (got {self.early_stopping!r})')
