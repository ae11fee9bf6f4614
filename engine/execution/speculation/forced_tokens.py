"""Proposes the tokens that a reply's grammar forces: of JSON, the names of the properties and much between them.

Such a draft is always right, unless another ban or the end of the reply comes before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.errors import LogitsError
from engine.execution.speculation.proposer import Proposer
from engine.sampling.sampler import SamplingRow
from engine.scheduling.request import Request
from engine.scheduling.step_plan import Chunk, StepPlan

MAX_FORCED_TOKENS = 16
"""Maximum forced tokens of one reply in one step; the others follow in the next steps."""
MIN_SAMPLED_ROWS = 32
"""Rows of logits that a step may have for forced tokens, also where settings expect fewer in a step without drafts."""


class ForcedTokens:
    """A proposer that reads the grammars of the replies in flight.

    Args:
        sampling_row: returns the sampling state of a request in flight.
        fallback: proposes where nothing is forced. It may keep no state for a request, since it does not see all
            drafts.
    """

    def __init__(self, sampling_row: Callable[[Request], SamplingRow], fallback: Proposer | None = None) -> None:
        self._sampling_row = sampling_row
        self._fallback = fallback

    def propose(self, plan: StepPlan, counts: Sequence[int]) -> list[tuple[int, ...]]:
        drafts = [
            self.forced(chunk.request)[:count] if count else ()
            for chunk, count in zip(plan.chunks, counts, strict=True)
        ]
        if self._fallback is None:
            return drafts
        left = [0 if draft else count for draft, count in zip(drafts, counts, strict=True)]
        proposed = self._fallback.propose(plan, left)
        return [draft or proposal for draft, proposal in zip(drafts, proposed, strict=True)]

    def confirm(self, chunks: Sequence[Chunk]) -> None:
        """Does nothing: the grammar follows the request's text."""

    def forced(self, request: Request) -> tuple[int, ...]:
        """Returns the tokens that must come next; empty where the reply has a choice, or no grammar."""
        row = self._sampling_row(request)
        if row.grammar is None:
            return ()
        try:
            return row.grammar.forced(row.token_ids, row.num_prompt_tokens)
        except LogitsError:  # sampling raises it again, and ends this reply alone
            return ()

    def count(self, request: Request) -> int:
        """Returns how many tokens must come next, at most :data:`MAX_FORCED_TOKENS`."""
        return min(len(self.forced(request)), MAX_FORCED_TOKENS)
