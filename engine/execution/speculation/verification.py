"""Verifies draft tokens against sampled tokens: a step with a draft is several steps whose logits come at once.

The first round samples after the newest real token. If the sampled token equals the draft token, the draft token's row
is the next round, and so on. Each round is sampled, committed and output as if it had been planned by itself, with
everything that depends on earlier tokens: penalties, bans, stop strings. Rows after a wrong draft token are wasted;
the next step overwrites them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from engine.scheduling.request import RequestStatus
from engine.scheduling.scheduler import Chunk, SchedulerCounters, StepPlan


def verify_drafts(plan: StepPlan, counters: SchedulerCounters) -> Iterator[tuple[StepPlan, list[int] | None]]:
    """Yields what to sample from a computed step: one round for each further token of its requests.

    Args:
        plan: the step.
        counters: count the accepted draft tokens.

    Yields:
        A plan, and for each chunk of its ``sampling`` the row of the step's sampled logits; None for all rows. Its
        tokens must be committed before the next plan is requested.
    """
    if plan.num_sampled_rows == len(plan.sampling):
        yield plan, None
        return
    rows = list(accumulate([1 + len(chunk.draft) for chunk in plan.sampling[:-1]], initial=0))
    while plan.chunks:
        yield plan, rows
        following = [(_following(chunk), row + 1) for chunk, row in zip(plan.sampling, rows, strict=True)]
        right = [(chunk, row) for chunk, row in following if chunk is not None]
        plan, rows = StepPlan(tuple([chunk for chunk, _row in right])), [row for _chunk, row in right]
        counters.accepted_draft_tokens += len(right)


def _following(chunk: Chunk) -> Chunk | None:
    """Returns a chunk's next draft token as the next round's chunk, if it was sampled."""
    request = chunk.request
    if not chunk.draft or request.status is not RequestStatus.RUNNING or request.token_ids[chunk.end] != chunk.draft[0]:
        return None
    request.num_accepted_draft_tokens += 1
    return chunk._replace(start=chunk.end, end=chunk.end + 1, token_ids=chunk.draft[:1], draft=chunk.draft[1:])
