"""Decides what to omit from a conversation that exceeds the model's context. Pure: the caller counts tokens.

The policy: drop the oldest turns, keep the system prompt. A turn is a message with its reply and is dropped as a
whole. Space for the reply is reserved: its maximum length, but at most a quarter of the context. A dropped turn stays
dropped; when more must go, the history is cut to half of its budget. So later prompts share a prefix, which the
engine finds in its cache, until the budget is used up again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

#: What to do with a conversation that exceeds the model's context.
ContextPolicy = Literal["drop_oldest", "refuse"]


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

    def holds(self, prompt_tokens: int) -> bool:
        """Whether at least one token of reply fits after the prompt."""
        return prompt_tokens < self.context_length


async def count_turns_to_omit(
    count: Callable[[int], Awaitable[int]], turns: int, *, already: int, budget: ContextBudget
) -> int:
    """How many of the oldest turns to omit from the prompt.

    All of them if the newest message alone exceeds the budget; the caller checks whether it fits at all.

    Args:
        count: the prompt's tokens without that many of the oldest turns; monotonically non-increasing.
        turns: number of turns before the newest message.
        already: number of turns omitted for the previous reply.
    """
    already = min(already, turns)
    if already == turns or await count(already) <= budget.for_prompt:
        return already
    least = await count(turns)
    enough = least + max(0, budget.for_prompt - least) // 2
    low, high = already + 1, turns
    while low < high:
        middle = (low + high) // 2
        if await count(middle) <= enough:
            high = middle
        else:
            low = middle + 1
    return low
