"""What guesses the tokens that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.scheduling.scheduler import Chunk, StepPlan


class Proposer(Protocol):
    """Guesses what follows in running requests. A wrong guess costs time, and never changes a reply."""

    def propose(self, plan: StepPlan, counts: Sequence[int]) -> list[tuple[int, ...]]:
        """Guess what follows each chunk of a step, before it is computed. Called for every step.

        Args:
            plan: the step.
            counts: for each chunk how many tokens to guess at most. Where it is above 0 the chunk ends with the
                newest token of its request, and its block tables have room for the guesses.

        Returns:
            For each chunk up to as many token ids as its count.
        """
        ...

    def confirm(self, chunks: Sequence[Chunk]) -> None:
        """Of drafts that were right to the end, the last guess: a token of the text now.

        Args:
            chunks: one token each. Their requests may have finished, but their blocks are not in use again yet.
        """
        ...
