"""Percentiles of what was measured."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest ranks, as numpy and spreadsheets have it.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
