"""Streams of several prompts in one request, and of prompts that are only scored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.api.openai.requests import CompletionRequest
from app.api.sse import close
from engine import ChatEngine, Delta, FinishReason, SamplingParams


async def continue_prompts(
    engine: ChatEngine, body: CompletionRequest, params: SamplingParams, options: Mapping[str, Any]
) -> AsyncIterator[Delta]:
    """Returns the deltas of all prompts of a request.

    Args:
        options: keyword arguments of :meth:`engine.ChatEngine.complete`.

    Raises:
        EngineError: a prompt cannot be tokenized.
    """
    prompts: Sequence[str | Sequence[int]] = body.prompt
    if body.add_special_tokens is False:
        prompts = [
            await engine.tokenize(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]
    each = [engine.complete(prompt, params, **options) for prompt in prompts]
    return each[0] if len(each) == 1 else merge_streams(each, params.n)


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
