"""Whether what a process holds stays what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Values per unit of time: the median of the slopes between all pairs (Theil and Sen), which single jumps of what
    is held for a moment do not move.

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
    """How something grew over the second half of a soak; the first is for caches and pools to fill."""

    per_hour: float
    grown: float  #: over the second half
    bound: float  #: most that it may have grown

    @property
    def is_flat(self) -> bool:
        return self.grown <= self.bound

    @classmethod
    def of(cls, seconds: Sequence[float], values: Sequence[float], *, share: float, least: float) -> Trend:
        """Of samples over time, the first half left out.

        Args:
            share: of its median, that it may grow.
            least: that it may grow in any case.
        """
        half = (seconds[0] + seconds[-1]) / 2
        late = [(at, value) for at, value in zip(seconds, values, strict=True) if at >= half]
        times, held = [at for at, _ in late], [value for _, value in late]
        per_second = slope(times, held)
        return cls(3600 * per_second, per_second * (times[-1] - times[0]), max(share * median(held), least))
