"""Scripts the users' chats: the same questions with the same seeds for every server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

MESSAGES_PER_CONVERSATION = 4
"""Messages after which the user starts another conversation."""
MAX_REPLY_TOKENS = 256
"""Tokens of a reply; the bundled model rarely writes that many."""
QUESTIONS = (
    "What can Deskmate do?",
    "How do I start a new chat?",
    "What is the temperature?",
    "Why is my reply cut off?",
    "How do I move to another machine with all my chats?",
    "Give me three ideas for a dinner with friends.",
    "Write a short answer to a customer whose parcel is late.",
    "What is a KV cache?",
    "How do I back up my conversations?",
    "Tell me something about the search.",
    "What do I do when the server does not start?",
    "How do I make an account for somebody?",
    "Who are you?",
)


@dataclass(frozen=True, slots=True)
class ScriptedQuestion:
    text: str
    seed: int
    starts_conversation: bool


def questions(user: int, turn: int) -> Iterator[ScriptedQuestion]:
    """Yields one user's questions endlessly. They differ between turns, so that no turn is served from a cache."""
    number = 0
    while True:
        text = QUESTIONS[(5 * user + 3 * turn + number) % len(QUESTIONS)]
        starts_conversation = number % MESSAGES_PER_CONVERSATION == 0
        if starts_conversation:
            text = f"Hello, I am number {100 * turn + user}. {text}"
        yield ScriptedQuestion(text, seed=number + 1000 * (100 * turn + user), starts_conversation=starts_conversation)
        number += 1


AskFunction = Callable[[ScriptedQuestion], Awaitable[object]]
"""Asks a question and reads the reply to its end."""


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """Tokens generated in a time window in which all users were chatting."""

    tokens: float
    seconds: float


async def chat(
    users: Sequence[AskFunction],
    turn: int,
    *,
    settle: float,
    seconds: float,
    count: Callable[[], Awaitable[tuple[float, float]]],
) -> TokenWindow:
    """Lets all users chat at once and counts tokens for ``seconds``; a user sends the next message after each reply.

    Args:
        users: each user's ask function.
        turn: number of the turn; selects the questions.
        settle: seconds before the counting starts.
        seconds: duration of the counting.
        count: returns the tokens generated so far, and the time of the count in seconds.
    """
    stop_event = asyncio.Event()

    async def one(number: int, answer: AskFunction) -> None:
        for question in questions(number, turn):
            if stop_event.is_set():
                return
            await answer(question)

    async def measured() -> TokenWindow:
        await asyncio.sleep(settle)
        tokens, moment = await count()
        await asyncio.sleep(seconds)
        later_tokens, later = await count()
        stop_event.set()
        return TokenWindow(later_tokens - tokens, later - moment)

    with contextlib.ExitStack() as cleaning:
        cleaning.callback(stop_event.set)
        async with asyncio.TaskGroup() as group:
            window = group.create_task(measured())
            for number, answer in enumerate(users):
                group.create_task(one(number, answer))
    return window.result()
