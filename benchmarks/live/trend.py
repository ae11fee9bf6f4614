"""Decides whether a process's resource use stays flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Returns the change of the values per unit of time.

    It is the median of the slopes between all pairs (Theil and Sen), which short spikes do not affect.

    Raises:
        ValueError: there are not two different times.
    """
    slopes = [
        (values[later] - values[earlier]) / (times[later] - times[earlier])
        for earlier, later in combinations(range(len(times)), 2)
        if times[later] != times[earlier]
    ]
    if not slopes:
        raise ValueError("a slope needs two different times")
    return median(slopes)


@dataclass(frozen=True, slots=True)
class Trend:
    """Growth over the second half of a soak; caches and pools fill in the first half."""

    per_hour: float
    grown: float  #: growth over the second half
    bound: float  #: largest growth that counts as flat

    @property
    def is_flat(self) -> bool:
        return self.grown <= self.bound

    @classmethod
    def of(cls, seconds: Sequence[float], values: Sequence[float], *, share: float, least: float) -> Trend:
        """Computes the trend of samples over time, without the first half.

        Args:
            seconds: times of the samples.
            values: the samples.
            share: allowed growth as a share of the median.
            least: allowed growth in any case.
        """
        half = (seconds[0] + seconds[-1]) / 2
        late = [(at, value) for at, value in zip(seconds, values, strict=True) if at >= half]
        times, held = [at for at, _ in late], [value for _, value in late]
        per_second = slope(times, held)
        return cls(3600 * per_second, per_second * (times[-1] - times[0]), max(share * median(held), least))
