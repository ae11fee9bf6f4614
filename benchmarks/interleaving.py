"""Runs repetitions interleaved: A, B, C, A, B, C. A drift of the machine's speed then affects all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

MAX_OTHERS_CPU_SHARE = 0.08
"""Share of the CPU, 0 to 1, used by other processes. Above it a repetition does not count."""


class CannotContinueError(Exception):
    """One participant cannot continue; the message says why."""


@dataclass(frozen=True)
class Repetition:
    figures: dict[str, float]
    others_cpu_share: float  #: share of the CPU that other processes used meanwhile, 0 to 1

    @property
    def is_valid(self) -> bool:
        return self.others_cpu_share <= MAX_OTHERS_CPU_SHARE


@dataclass
class Series:
    """All repetitions of one engine with one workload."""

    repetitions: list[Repetition] = field(default_factory=list)
    problem: str | None = None  #: why there are no further repetitions

    @property
    def dropped(self) -> int:
        """Number of repetitions during which other processes were busy."""
        return sum(not repetition.is_valid for repetition in self.repetitions)

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes were busy in every repetition; all of them count then."""
        return bool(self.repetitions) and self.dropped == len(self.repetitions)

    @property
    def figures(self) -> dict[str, float]:
        """Medians of the repetitions that count."""
        counted = [one.figures for one in self.repetitions if one.is_valid or self.is_disturbed]
        keys = counted[0].keys() if counted else ()
        return {key: median(figures[key] for figures in counted) for key in keys}


MeasureFunction = Callable[[str, int], Repetition]
"""(name, turn) -> one repetition; raises :class:`CannotContinueError`."""


def run_interleaved(names: Sequence[str], repeats: int, measure: MeasureFunction) -> dict[str, Series]:
    """Measures until each name has ``repeats`` valid repetitions, in at most twice as many rounds.

    Turn 0 is a warm-up and is discarded. A participant that raises takes no further turns and keeps its repetitions.
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
