"""Streams of several prompts in one request, and of prompts that are only scored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

from app.api.sse import close
from engine import Delta, FinishReason


async def merge_streams(streams: Sequence[AsyncIterator[Delta]], replies: int) -> AsyncGenerator[Delta]:
    """Yields the deltas of several prompts as they arrive; ``index`` continues from one prompt to the next.

    Args:
        replies: number of replies per prompt.

    Raises:
        Exception: the first error of any stream; the other streams are closed.
    """
    arrived: asyncio.Queue[Delta | Exception | None] = asyncio.Queue(maxsize=len(streams))

    async def read(number: int, stream: AsyncIterator[Delta]) -> None:
        try:
            async for delta in stream:
                await arrived.put(replace(delta, index=number * replies + delta.index))
            await arrived.put(None)
        except Exception as error:
            await arrived.put(error)

    tasks = [asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)]
    try:
        unfinished = len(tasks)
        while unfinished:
            one = await arrived.get()
            if one is None:
                unfinished -= 1
            elif isinstance(one, Exception):
                raise one
            else:
                yield one
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams:
            await close(stream)


async def drop_replies(deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
    """Removes the reply from the deltas of a prompt that is only scored, for which the engine generates one token."""
    try:
        async for delta in deltas:
            timings = delta.timings and replace(delta.timings, completion_tokens=0)
            ended = None if delta.finish_reason is None else FinishReason.LENGTH
            yield replace(
                delta,
                text="",
                token_ids=(),
                token_count=None,
                logprobs=(),
                finish_reason=ended,
                stop_reason=None,
                timings=timings,
            )
    finally:
        await close(deltas)
