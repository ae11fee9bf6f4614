"""Repetitions that take turns: A, B, C, A, B, C. A machine whose speed drifts changes all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

MAX_OTHERS_CPU_SHARE = 0.08
"""Above this share of the CPU for others, a figure says more about them."""


class CannotContinueError(Exception):
    """One of those who take turns cannot go on; says why."""


@dataclass(frozen=True)
class Repetition:
    figures: dict[str, float]
    others_cpu_share: float  #: share of the CPU that others used meanwhile, 0 to 1

    @property
    def is_valid(self) -> bool:
        return self.others_cpu_share <= MAX_OTHERS_CPU_SHARE


@dataclass
class Series:
    """All repetitions of one engine at one work."""

    repetitions: list[Repetition] = field(default_factory=list)
    problem: str | None = None  #: why there are no more

    @property
    def dropped(self) -> int:
        """Others were busy."""
        return sum(not repetition.is_valid for repetition in self.repetitions)

    @property
    def is_disturbed(self) -> bool:
        """Others were busy in all of them, so that they count for want of better ones."""
        return bool(self.repetitions) and self.dropped == len(self.repetitions)

    @property
    def figures(self) -> dict[str, float]:
        """Medians of those that count."""
        counted = [one.figures for one in self.repetitions if one.is_valid or self.is_disturbed]
        keys = counted[0].keys() if counted else ()
        return {key: median(figures[key] for figures in counted) for key in keys}


MeasureFunction = Callable[[str, int], Repetition]
"""One repetition of who is named, in this turn; raises :class:`CannotContinueError`."""


def run_interleaved(names: Sequence[str], repeats: int, measure: MeasureFunction) -> dict[str, Series]:
    """``repeats`` repetitions of each that count, in at most twice as many rounds. Turn 0 warms up and is thrown away.

    Who raises is out, and keeps what it has.
    """
    series = {name: Series() for name in names}
    for turn in range(2 * repeats + 1):
        for name in names:
            one = series[name]
            if one.problem is not None or len(one.repetitions) - one.dropped >= repeats:
                continue
            try:
                repetition = measure(name, turn)
            except CannotContinueError as error:
                one.problem = str(error)
                continue
            if turn:
                one.repetitions.append(repetition)
    return series
