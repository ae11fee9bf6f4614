"""Sequential steps: each one is planned, computed and sampled before the next."""

from __future__ import annotations

from collections.abc import Iterator

from engine.execution.steps.strategy import ComputedStep, StepStrategy


class SequentialSteps(StepStrategy):
    """Makes one step at a time."""

    def advance(self) -> Iterator[ComputedStep]:
        plan = self.plan()
        if plan.chunks:
            yield self.compute(plan)
