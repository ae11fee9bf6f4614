"""What is left out of a conversation that is longer than the model's context. Pure: counting tokens is the caller's.

The policy is *oldest turns dropped, system prompt kept*. A turn is a message with its reply, and goes as a whole. Room
for the reply is kept free: as much as it may take, at most a quarter of the context. What was left out once stays out,
and when more must go, the history is cut to half the room there is for it: so the turns that follow begin with the
same tokens, which the engine finds in its cache, until the room is full again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

#: What happens to a conversation that has become longer than the model's context.
ContextPolicy = Literal["drop_oldest", "refuse"]


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """How many tokens there are.

    Args:
        context_length: most tokens the model reads, its reply included.
        max_tokens: most tokens of the reply; None is as many as fit.
    """

    context_length: int
    max_tokens: int | None

    @property
    def for_reply(self) -> int:
        """Tokens kept free behind the prompt."""
        quarter = self.context_length // 4
        return quarter if self.max_tokens is None else min(self.max_tokens, quarter)

    @property
    def for_prompt(self) -> int:
        return self.context_length - self.for_reply

    def holds(self, prompt_tokens: int) -> bool:
        """Whether a token of reply fits behind the prompt at all."""
        return prompt_tokens < self.context_length


async def count_turns_to_omit(
    count: Callable[[int], Awaitable[int]], turns: int, *, already: int, room: ContextBudget
) -> int:
    """How many of the oldest turns to leave out of the prompt.

    All of them, where the newest message alone takes the room: whether it fits is then for the caller to see.

    Args:
        count: the prompt's tokens without that many of the oldest turns; less is never more.
        turns: there are before the newest message.
        already: were left out for the last reply.
    """
    already = min(already, turns)
    if already == turns or await count(already) <= room.for_prompt:
        return already
    least = await count(turns)
    enough = least + max(0, room.for_prompt - least) // 2
    low, high = already + 1, turns
    while low < high:
        middle = (low + high) // 2
        if await count(middle) <= enough:
            high = middle
        else:
            low = middle + 1
    return low
