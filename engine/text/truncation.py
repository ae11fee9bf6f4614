"""Truncates a conversation to the context window: see :class:`engine.interface.Truncation` for the policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.errors import ContextLengthError
from engine.interface import ChatMessage, PreparedPrompt, Truncation

P = TypeVar("P", bound=PreparedPrompt)

KEPT_SHARE = 0.75
"""Share of the room for past turns that they keep when some must go. The rest is used up before more go, so that the
prompts until then share a prefix, which the engine finds in its cache."""

CHARACTERS_PER_MESSAGE = 20
"""Characters that a chat template adds to a message, approximately. Only the number of renders depends on it."""


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """The token budget of a prompt.

    Args:
        context_length: tokens of the model's context, prompt and reply together.
        max_tokens: maximum length of the reply in tokens; None means as many as fit.
    """

    context_length: int
    max_tokens: int | None

    @property
    def for_reply(self) -> int:
        """Tokens reserved for the reply."""
        quarter = self.context_length // 4
        return quarter if self.max_tokens is None else min(self.max_tokens, quarter)

    @property
    def for_prompt(self) -> int:
        return self.context_length - self.for_reply


async def prepare_truncated(
    prepare: Callable[[Sequence[ChatMessage]], Awaitable[P]],
    messages: Sequence[ChatMessage],
    truncation: Truncation | None,
    budget: ContextBudget,
) -> P:
    """Prepares a conversation, without its oldest turns where they do not fit.

    Args:
        prepare: prepares messages; raises :class:`ContextLengthError` if they are too long.
        truncation: None prepares all messages.

    Raises:
        ContextLengthError: the system messages and the last user message alone are too long.
    """
    if truncation is None:
        return await prepare(messages)
    first, *starts = _turn_starts(messages)
    omitted = [0, *(start - first for start in starts)]  # messages, by the number of turns left out
    tried: dict[int, P | ContextLengthError] = {}

    async def count(turns: int) -> int:
        if turns not in tried:
            kept = [*messages[:first], *messages[first + omitted[turns] :]]
            try:
                tried[turns] = await prepare(kept)
            except ContextLengthError as error:
                tried[turns] = error
        one = tried[turns]
        return one.prompt_tokens if isinstance(one, ContextLengthError) else one.num_prompt_tokens

    already = sum(number <= truncation.num_omitted for number in omitted[1:])
    sizes = [sum(map(_size, messages[a:b])) for a, b in zip([first, *starts], starts, strict=False)]
    turns = await count_turns_to_omit(count, sizes, already=already, budget=budget, may_restore=truncation.may_restore)
    await count(turns)
    chosen = tried[turns]
    if isinstance(chosen, ContextLengthError):
        raise chosen
    return replace(chosen, num_omitted_messages=omitted[turns])


async def count_turns_to_omit(
    count: Callable[[int], Awaitable[int]],
    sizes: Sequence[int],
    *,
    already: int,
    budget: ContextBudget,
    may_restore: bool = True,
) -> int:
    """Returns how many of the oldest turns to leave out of the prompt.

    All of them if the newest message alone exceeds the budget; the caller checks whether it fits at all.

    Args:
        count: the prompt's tokens without that many of the oldest turns; monotonically non-increasing.
        sizes: approximate sizes of the turns before the newest message, in any unit. They decide which numbers are
            tried first, and so how often ``count`` is called, but not the result.
        already: number of turns that the previous prompt left out. Fewer are left out where there is room for them
            again, as after a long system prompt was replaced by a short one.
        may_restore: false: no fewer than ``already`` are left out.
    """
    if not sizes:
        return 0
    already = min(already, len(sizes))
    most = await count(already)
    if most <= budget.for_prompt and (already == 0 or not may_restore or most > KEPT_SHARE * budget.for_prompt):
        return already
    least = await count(len(sizes))
    enough = least + int(KEPT_SHARE * max(0, budget.for_prompt - least))
    if most <= enough:
        # Right after turns were left out, the next one does not fit either: no search, unless the estimate is far off.
        tokens_per_size = (most - least) / max(1, sum(sizes[already:]))
        if most + tokens_per_size * sizes[already - 1] / 2 > enough:
            return already
        if await count(0) <= budget.for_prompt:
            return 0
        low, high, middle = 1, already, already - 1
    elif most <= budget.for_prompt:
        return already
    else:
        low, high = min(already + 1, len(sizes)), len(sizes)
        middle = _guess(sizes, already, (enough - least) / max(1, most - least))
    first, stride = low, 1
    while low < high:
        middle = min(max(middle, low), high - 1)
        if await count(middle) <= enough:
            high = middle
            middle = high - stride
        else:
            low = middle + 1
            middle = low + stride - 1
        stride *= 2
        if first < low and high < len(sizes):  # the answer lies between two numbers that were tried
            middle = (low + high) // 2
    return high


def _guess(sizes: Sequence[int], already: int, share: float) -> int:
    """Returns how many turns to leave out so that about ``share`` of the size of those after ``already`` stays."""
    left = share * sum(sizes[already:])
    for number in range(len(sizes), already, -1):
        left -= sizes[number - 1]
        if left < 0:
            return number
    return already


def _turn_starts(messages: Sequence[ChatMessage]) -> list[int]:
    """Returns the index of each turn's first message, after the system messages at the start. Never empty."""
    first = next((index for index, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    later = [index for index in range(first + 1, len(messages)) if messages[index].get("role") == "user"]
    return [first, *later]


def _size(message: ChatMessage) -> int:
    content = message.get("content")
    return (len(content) if isinstance(content, str) else 0) + CHARACTERS_PER_MESSAGE
