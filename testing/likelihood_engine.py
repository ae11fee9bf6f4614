"""An engine that finds a question likely after some passages, as a model does that sorts what a search found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from engine import ChatMessage, Delta, FinishReason, Logprob, PreparedPrompt, TokenLogprobs
from testing.fake_engine import FakeEngine

UNLIKELY = -5.0


class LikelihoodEngine(FakeEngine):
    """Gives a reply's words the mean log-probability that ``logprobs`` has for the first of its keys in the prompt.

    Of other prompts it is ``UNLIKELY``. Replies are written as by :class:`FakeEngine`.
    """

    def __init__(self, **logprobs: float | None) -> None:
        super().__init__()
        self.logprobs = logprobs
        self.scored: list[tuple[ChatMessage, ...]] = []  #: the conversations
        self.prepared: list[PreparedPrompt] = []  #: the same as prompts
        self.fails_at: int | None = None  #: the number of conversations before one fails
        self.waits_from: int | None = None  #: the number of conversations after which none ends
        self.most_at_once = 0

    async def _inspect(self, prepared: PreparedPrompt, position: int | None) -> AsyncGenerator[Delta]:
        assert position is None
        self._admit(prepared.num_prompt_tokens)
        *_, asked, reply = prepared.messages
        assert (asked["role"], reply["role"], reply.get("unfinished")) == ("user", "assistant", True)
        self.scored.append(prepared.messages)
        self.prepared.append(prepared)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        ended = False
        try:
            if self.waits_from is not None and len(self.scored) > self.waits_from:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if self.fails_at is not None and len(self.scored) > self.fails_at:
                raise self.default.error
            mean = next((value for word, value in self.logprobs.items() if word in asked["content"]), UNLIKELY)
            # Two tokens for each word, whose mean is not that of either: a sum or a single token is another score.
            spread = [None, None] if mean is None else [mean - 1, mean + 1]
            scores = tuple(
                TokenLogprobs(Logprob(1, value, word, word.encode()), 1, ())
                for word in reply["content"].split()
                for value in spread
            )
            ended = True
            yield Delta("likelihood", token_ids=(0,), prompt_logprobs=scores, finish_reason=FinishReason.LENGTH)
        finally:
            self.running -= 1
            self.aborted += not ended
