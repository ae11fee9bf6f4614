"""Computes quantiles."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """Returns a quantile, linear between the two nearest ranks as in NumPy and spreadsheets.

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
