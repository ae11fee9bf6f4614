"""Guesses against what is sampled: a step with a draft is several steps whose logits were computed at once.

The first samples behind the newest real token. Where that takes the guess, the row of the guess is the next step's, and
so on. Each is sampled, committed and read as if it had been planned for itself, with all that depends on the tokens
before it: penalties, bans, stop strings. What is behind a wrong guess was computed in vain; the next step writes over
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from engine.scheduling.request import RequestStatus
from engine.scheduling.scheduler import Chunk, SchedulerCounters, StepPlan


def rounds(plan: StepPlan, counters: SchedulerCounters) -> Iterator[tuple[StepPlan, list[int] | None]]:
    """What to sample from a step that was computed, one token of each request after another.

    Args:
        plan: the step.
        counters: count the guesses that were right.

    Yields:
        A plan, and for each chunk of its ``sampling`` the row of the step's sampled logits; None for all rows. Its
        tokens must be committed before the next one is asked for.
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
    """The guess behind a chunk as the next step's chunk, if it is right."""
    request = chunk.request
    if not chunk.draft or request.status is not RequestStatus.RUNNING or request.token_ids[chunk.end] != chunk.draft[0]:
        return None
    request.num_accepted_draft_tokens += 1
    return chunk._replace(start=chunk.end, end=chunk.end + 1, token_ids=chunk.draft[:1], draft=chunk.draft[1:])
