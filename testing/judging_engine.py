"""A scripted engine that says of each passage whether it answers, as a model does that sorts what a search found."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator

from engine import Delta, FinishReason, Logprob, PreparedPrompt, TokenLogprobs
from testing.fake_engine import FakeEngine

QUESTION_OF_JUDGE = "Does this passage answer the question?"


class JudgingEngine(FakeEngine):
    """Answers "Yes" with the chance that ``chances`` gives for the first of its words that the passage has.

    Of other passages it says neither. Other prompts are answered as by :class:`FakeEngine`.
    """

    def __init__(self, **chances: float) -> None:
        super().__init__()
        self.chances = chances
        self.judged: list[str] = []  #: the prompts
        self.fails_at: int | None = None  #: the number of judgements before one fails
        self.waits_from: int | None = None  #: the number of judgements after which none ends
        self.most_at_once = 0

    async def _stream(self, prepared: PreparedPrompt, deadline: float | None) -> AsyncGenerator[Delta]:
        prompt = prepared.messages[-1]["content"]
        if QUESTION_OF_JUDGE not in prompt:
            async for delta in super()._stream(prepared, deadline):
                yield delta
            return
        self._admit(prepared.num_prompt_tokens)
        params = prepared.params
        assert (params.max_tokens, params.temperature, params.logprobs) == (1, 0, 20)
        self.judged.append(prompt)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        ended = False
        try:
            if self.waits_from is not None and len(self.judged) > self.waits_from:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if self.fails_at is not None and len(self.judged) > self.fails_at:
                raise self.default.error
            chance = next((chance for word, chance in self.chances.items() if word in prompt), None)
            ended = True
            yield Delta("judge", token_ids=(1,), logprobs=(_logprobs(chance),), finish_reason=FinishReason.LENGTH)
        finally:
            self.running -= 1
            self.aborted += not ended


def _logprobs(chance: float | None) -> TokenLogprobs:
    words = {"The": 0.5} if chance is None else {" Yes": 0.8 * chance, "No": 0.8 * (1 - chance), "The": 0.2}
    top = tuple(Logprob(1, math.log(max(share, 1e-9)), word, word.encode()) for word, share in words.items())
    return TokenLogprobs(top[0], 1, top)
