"""The interface of proposers, which make draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.scheduling.step_plan import Chunk, StepPlan


class Proposer(Protocol):
    """Proposes draft tokens for running requests. A wrong draft token costs time, and never changes a reply."""

    def propose(self, plan: StepPlan, counts: Sequence[int]) -> list[tuple[int, ...]]:
        """Proposes the tokens that follow each chunk of a step, before it is computed. Called for every step.

        Args:
            plan: the step.
            counts: for each chunk, how many tokens to propose at most. If it is above 0, the chunk ends with the
                newest token of its request, and its block tables have space for the draft tokens.

        Returns:
            For each chunk up to as many token ids as its count.
        """
        ...

    def confirm(self, chunks: Sequence[Chunk]) -> None:
        """Reports the last token of each fully accepted draft, which is part of the text now.

        Args:
            chunks: one token each. Their requests may have finished, but their blocks have not been reused yet.
        """
        ...
