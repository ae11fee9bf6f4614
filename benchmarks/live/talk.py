"""What people say: the same questions with the same seeds, whoever answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

MESSAGES = 4
"""Of a conversation, then the person begins another one."""
LONGEST_REPLY = 256
"""In tokens; the bundled model rarely writes that much."""
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
class Question:
    text: str
    seed: int
    begins: bool  #: a conversation


def questions(person: int, turn: int) -> Iterator[Question]:
    """One person's, without an end. They differ from turn to turn, so that no cache knows a turn by the one before."""
    number = 0
    while True:
        text = QUESTIONS[(5 * person + 3 * turn + number) % len(QUESTIONS)]
        begins = number % MESSAGES == 0
        if begins:
            text = f"Hello, I am number {100 * turn + person}. {text}"
        yield Question(text, seed=number + 1000 * (100 * turn + person), begins=begins)
        number += 1


Answer = Callable[[Question], Awaitable[object]]
"""Asks a question and reads the reply to its end."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was generated while everybody was chatting."""

    tokens: float
    seconds: float


async def chat(
    people: Sequence[Answer],
    turn: int,
    *,
    settle: float,
    seconds: float,
    count: Callable[[], Awaitable[tuple[float, float]]],
) -> Window:
    """Let all chat at once, each sending the next message as soon as a reply has ended, and count for ``seconds``.

    Args:
        people: how each of them asks.
        settle: seconds before the counting begins.
        count: tokens generated so far, and the moment they were counted in seconds.
    """
    over = asyncio.Event()

    async def one(number: int, answer: Answer) -> None:
        for question in questions(number, turn):
            if over.is_set():
                return
            await answer(question)

    async def measured() -> Window:
        await asyncio.sleep(settle)
        tokens, moment = await count()
        await asyncio.sleep(seconds)
        later_tokens, later = await count()
        over.set()
        return Window(later_tokens - tokens, later - moment)

    with contextlib.ExitStack() as cleaning:
        cleaning.callback(over.set)
        async with asyncio.TaskGroup() as group:
            window = group.create_task(measured())
            for number, answer in enumerate(people):
                group.create_task(one(number, answer))
    return window.result()
