"""Sorts the passages that a search has found anew, by what the chat model says of each."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence

from app.domain.knowledge import Passage
from app.domain.placed_text import PlacedText
from app.domain.sources import show_source
from engine import Caller, ChatEngine, ChatMessage, ChatOptions, EngineError, Logprob, SamplingParams

_log = logging.getLogger(__name__)

MAX_SECONDS = 10.0
"""A reply waits no longer for the passages to be sorted: after that they stay as the search has sorted them."""
_AT_ONCE = 8  # requests in the engine's batch; more would fill the queue in which other users wait
_ANSWER = SamplingParams(temperature=0.0, max_tokens=1, logprobs=20)
_NO_THINKING = ChatOptions(thinking=False)


class Reranker:
    """Asks the model of each passage whether it answers the question: one prefill and one token for each.

    A passage's score is P(yes) / (P(yes) + P(no)) of that token, as of other rerankers that are language models.
    Source: Nogueira et al., Document Ranking with a Pretrained Sequence-to-Sequence Model, EMNLP 2020.

    Args:
        template: has ``{{ question }}``, and after it ``{{ source }}``: the prompts of all passages of a question begin
            with the same text, which the prefix cache holds.

    Raises:
        ValueError: it has not.
    """

    def __init__(self, engine: ChatEngine, template: str) -> None:
        self._engine = engine
        self._text = PlacedText(template, "question", "source")

    async def rerank(
        self, question: str, passages: Sequence[Passage], *, count: int, caller: Caller | None = None
    ) -> list[Passage]:
        """Returns the passages, the first ``count`` of them in the order of :meth:`sort`.

        If the model fails, is busy, or takes longer than ``MAX_SECONDS``, their order stays.
        """
        try:
            async with asyncio.timeout(MAX_SECONDS):
                return await self.sort(question, passages, count=count, caller=caller)
        except TimeoutError:
            _log.info("passages were not reranked: the model took longer than %d s", MAX_SECONDS)
        except (EngineError, ValueError) as error:
            _log.info("passages were not reranked: %s", error)
        return list(passages)

    async def sort(
        self, question: str, passages: Sequence[Passage], *, count: int, caller: Caller | None = None
    ) -> list[Passage]:
        """Returns the passages, the first ``count`` of them by what the model says, best first. Scores stay.

        Of two that the model judges alike, the one that the search found first comes first.

        Raises:
            EngineError, ValueError: the model cannot be asked.
        """
        judged, rest = passages[:count], passages[count:]
        if len(judged) < 2:
            return list(passages)
        # The first alone: the others find its beginning in the prefix cache.
        scores = [await self._score(question, judged[0], caller)]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def score(passage: Passage) -> float:
            async with slots:
                return await self._score(question, passage, caller)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(score(passage)) for passage in judged[1:]]
        except* (EngineError, ValueError) as failed:
            raise failed.exceptions[0] from failed
        scores += [task.result() for task in tasks]
        best_first = sorted(zip(scores, judged, strict=True), key=lambda one: -one[0])
        return [*(passage for _, passage in best_first), *rest]

    async def _score(self, question: str, passage: Passage, caller: Caller | None) -> float:
        """Returns the score of a passage, 0 to 1."""
        asked = self._text.fill(question, show_source(1, passage)).rstrip("\n")
        top: tuple[Logprob, ...] = ()
        async for delta in self._engine.chat(
            [ChatMessage(role="user", content=asked)],
            _ANSWER,
            caller=caller,
            options=_NO_THINKING if self._engine.info.can_think else None,
        ):
            if delta.logprobs and not top:
                top = delta.logprobs[0].top
        return share_of_yes(top)


def share_of_yes(top: Iterable[Logprob]) -> float:
    """Returns P(yes) / (P(yes) + P(no)) by the likeliest tokens; 0 if neither word is among them."""
    chances = {"yes": 0.0, "no": 0.0}
    for one in top:
        word = one.text.strip(" .*\"'").casefold()
        if word in chances and one.logprob is not None:
            chances[word] += math.exp(one.logprob)
    total = sum(chances.values())
    return chances["yes"] / total if total else 0.0
