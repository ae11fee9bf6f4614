"""Reads the streams of a peer concurrently; some chats are sent only after the others have started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from time import perf_counter

from benchmarks.peers.protocol import Chat, TimedReply

Stream = Callable[[Chat], AsyncGenerator[Sequence[int]]]
"""Yields the new tokens of a chat as they arrive."""


async def read_all(chats: Sequence[Chat], stream: Stream) -> list[TimedReply]:
    """Reads all chats concurrently and returns their replies in the same order."""
    begin = perf_counter()
    replies: list[TimedReply] = [TimedReply(0.0, []) for _ in chats]
    late = any(chat.after for chat in chats)
    moved = asyncio.Condition()

    def begun(tokens: int) -> bool:
        pairs = zip(chats, replies, strict=True)
        return all(len(reply.times) >= min(tokens, chat.new_tokens) for chat, reply in pairs if not chat.after)

    async def read(index: int, chat: Chat) -> None:
        if chat.after:
            async with moved:
                await moved.wait_for(lambda: begun(chat.after))
        replies[index] = reply = TimedReply(perf_counter() - begin, [])
        async with aclosing(stream(chat)) as pieces:
            async for tokens in pieces:
                reply.times.extend([perf_counter() - begin] * len(tokens))
                reply.tokens.extend(tokens)
                if late:
                    async with moved:
                        moved.notify_all()

    await asyncio.gather(*(read(index, chat) for index, chat in enumerate(chats)))
    return replies
