"""What a server's ``/metrics`` says, as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def samples(text: str) -> dict[str, float]:
    """Every sample by its name, with its labels as they stand in the text: ``name`` or ``name{le="0.1"}``."""
    return {f"{name}{{{labels}}}" if labels else name: float(value) for name, labels, value in _SAMPLE.findall(text)}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Of what was observed: how many values lay at or below each bound, the last of which is infinite."""

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]

    @classmethod
    def of(cls, name: str, found: Mapping[str, float]) -> Histogram:
        """The histogram ``name`` among samples."""
        buckets = sorted(
            (float(key[len(name) + 12 : -2]), value)
            for key, value in found.items()
            if key.startswith(f'{name}_bucket{{le="')
        )
        return cls(tuple(bound for bound, _ in buckets), tuple(value for _, value in buckets))

    def since(self, earlier: Histogram) -> Histogram:
        """What was observed after ``earlier``."""
        return Histogram(
            self.bounds, tuple(now - then for now, then in zip(self.cumulative, earlier.cumulative, strict=True))
        )

    @property
    def count(self) -> float:
        return self.cumulative[-1] if self.cumulative else 0.0

    def quantile(self, share: float) -> float:
        """Linear within a bucket, as Prometheus has it; the last finite bound where it lies above all of them.

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
    """All that several of the same bounds have observed."""
    return Histogram(histograms[0].bounds, tuple(map(sum, zip(*(one.cumulative for one in histograms), strict=True))))
