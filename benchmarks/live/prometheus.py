"""Parses a server's ``/metrics``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def samples(text: str) -> dict[str, float]:
    """Returns every sample by its name with the labels as in the text: ``name`` or ``name{le="0.1"}``."""
    return {f"{name}{{{labels}}}" if labels else name: float(value) for name, labels, value in _SAMPLE.findall(text)}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts of values at or below each bound; the last bound is infinite."""

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]

    @classmethod
    def of(cls, name: str, found: Mapping[str, float]) -> Histogram:
        """Returns the histogram ``name`` among samples."""
        buckets = sorted(
            (float(key[len(name) + 12 : -2]), value)
            for key, value in found.items()
            if key.startswith(f'{name}_bucket{{le="')
        )
        return cls(tuple(bound for bound, _ in buckets), tuple(value for _, value in buckets))

    def since(self, earlier: Histogram) -> Histogram:
        """Returns the histogram of the values observed after ``earlier``."""
        return Histogram(
            self.bounds, tuple(now - then for now, then in zip(self.cumulative, earlier.cumulative, strict=True))
        )

    @property
    def count(self) -> float:
        return self.cumulative[-1] if self.cumulative else 0.0

    def quantile(self, share: float) -> float:
        """Returns a quantile, linear within a bucket as in Prometheus; at most the last finite bound.

        Raises:
            ValueError: nothing was observed.
        """
        if not self.count:
            raise ValueError("nothing was observed")
        rank = share * self.count
        below, lower = 0.0, 0.0
        for bound, cumulative in zip(self.bounds, self.cumulative, strict=True):
            if cumulative >= rank:
                if bound == inf:
                    return lower
                return lower + (bound - lower) * (rank - below) / (cumulative - below)
            below, lower = cumulative, bound
        raise AssertionError("the last bucket holds everything")


def merged(histograms: Sequence[Histogram]) -> Histogram:
    """Adds up histograms that have the same bounds."""
    return Histogram(histograms[0].bounds, tuple(map(sum, zip(*(one.cumulative for one in histograms), strict=True))))
