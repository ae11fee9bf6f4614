"""Runs many requests offline, as many at once as the engine takes, and joins each one's deltas to completions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

from tqdm import tqdm

from engine.outputs import Completion, Delta, join_tool_calls

Job = Callable[[], Awaitable[list[Completion]]]


async def run_all(jobs: Sequence[Job], max_at_once: int, *, show_progress: bool) -> list[Completion]:
    """Runs the jobs and returns their completions in the order of the jobs.

    Args:
        max_at_once: jobs in flight; the engine would refuse more.
        show_progress: draw a progress bar on stderr, which counts jobs.

    Raises:
        EngineError: the first error of a job; the other jobs are aborted.
    """
    slots = asyncio.Semaphore(max_at_once)
    with tqdm(total=len(jobs), desc="Generating", disable=not show_progress) as bar:

        async def one(job: Job) -> list[Completion]:
            async with slots:
                completions = await job()
            bar.update()
            return completions

        completed = await asyncio.gather(*map(one, jobs))
    return list(itertools.chain.from_iterable(completed))


def join_deltas(prompt: Sequence[int], index: int, all_deltas: Sequence[Delta]) -> Completion:
    """Returns the completion that the deltas of a finished request make.

    Args:
        prompt: token ids.
        index: which of the request's ``n`` replies.
    """
    deltas = [delta for delta in all_deltas if delta.index == index]
    last = deltas[-1]
    assert last.finish_reason is not None
    assert last.timings is not None
    return Completion(
        request_id=last.request_id,
        index=index,
        prompt_token_ids=tuple(prompt),
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(itertools.chain.from_iterable(delta.token_ids for delta in deltas)),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        timings=last.timings,
        logprobs=tuple(itertools.chain.from_iterable(delta.logprobs for delta in deltas)),
        prompt_logprobs=tuple(itertools.chain.from_iterable(delta.prompt_logprobs for delta in all_deltas)),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=join_tool_calls(call for delta in deltas for call in delta.tool_calls),
        beam_score=last.beam_score,
    )
