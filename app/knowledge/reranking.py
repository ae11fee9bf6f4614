"""Sorts the passages that a search has found anew, by how likely the chat model finds the question after each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from app.domain.knowledge import Passage
from app.domain.placed_text import PlacedText
from app.domain.sources import show_source
from app.knowledge.query_windows import question_in
from engine import (
    Caller,
    ChatEngine,
    ChatMessage,
    ChatOptions,
    ContextLengthError,
    EngineError,
    PreparedPrompt,
    ReplyInspector,
    SamplingParams,
)

_log = logging.getLogger(__name__)

MAX_SECONDS = 10.0
"""A reply waits no longer for the passages to be sorted: after that they stay as the search has sorted them."""
MAX_PASSAGE_CHARS = 2000
"""Of a passage, the model reads this many: what a chunk has. A table that stays whole can be longer."""
MAX_QUESTION_TOKENS = 150
"""Of a question, about the first are scored: each costs a row as wide as the vocabulary, for every passage."""
LIKELIHOOD_WEIGHT = 0.15
"""What a nat of the mean log-probability adds to a score from 0 to 1. Tuned: ``docs/benchmarks.md``."""
_AT_ONCE = 8  # requests in the engine's batch; more would fill the queue in which other users wait
_SCORED = SamplingParams.neutral(temperature=0.0, max_tokens=1)
_NO_THINKING = ChatOptions(thinking=False)


class ScoringEngine(ChatEngine, ReplyInspector, Protocol):
    """An engine that also computes how likely a given reply is, as one does that runs its model itself."""


class Reranker:
    """Adds to a passage's score how likely the model finds the question as one that the passage answers.

    The model is given the passage, is asked for a question, and the mean log-probability of the tokens of the user's
    question as its reply is computed: one prefill for each passage, and nothing is generated. Source: Sachan et al.,
    Improving Passage Retrieval with Zero-Shot Question Generation, EMNLP 2022 (arXiv 2204.07496).

    Args:
        template: asks for a question about ``{{ source }}``.

    Raises:
        ValueError: it has no such place.
    """

    def __init__(self, engine: ScoringEngine, template: str) -> None:
        self._engine = engine
        self._text = PlacedText(template, "source")

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
        """Returns the passages, the first ``count`` of them sorted by :func:`by_likelihood`. Scores stay.

        Args:
            question: of a long message, what it asks is scored.

        Raises:
            EngineError, ValueError: the model cannot score them.
        """
        first, rest = passages[:count], passages[count:]
        if len(first) < 2 or not question.strip():
            return list(passages)
        likelihoods = await self.likelihoods(question_in(question), first, caller=caller)
        return [*by_likelihood(first, likelihoods), *rest]

    async def likelihoods(
        self, question: str, passages: Sequence[Passage], *, caller: Caller | None = None
    ) -> list[float]:
        """Returns the mean log-probability of the question's tokens after each of the passages.

        Raises:
            EngineError, ValueError: the model cannot score them.
        """
        slots = asyncio.Semaphore(_AT_ONCE)
        scored = await self._beginning_of(question)

        async def score(passage: Passage) -> float:
            async with slots:
                return await self._likelihood(scored, passage, caller)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(score(passage)) for passage in passages]
        except* (EngineError, ValueError) as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in tasks]

    async def _beginning_of(self, question: str) -> str:
        tokens = len(await self._engine.tokenize(question, add_special_tokens=False))
        return question[: max(len(question) * MAX_QUESTION_TOKENS // tokens, 1)] if tokens else question

    async def _likelihood(self, question: str, passage: Passage, caller: Caller | None) -> float:
        prepared = await self._prepare(question, passage, caller)
        logprobs = [
            scores.token.logprob async for delta in self._engine.inspect(prepared) for scores in delta.prompt_logprobs
        ]
        known = [logprob for logprob in logprobs if logprob is not None]
        if not known or len(known) < len(logprobs):
            raise ValueError("the model gives the question no probability")
        return sum(known) / len(known)

    async def _prepare(self, question: str, passage: Passage, caller: Caller | None) -> PreparedPrompt:
        """The prompt with as much of the passage as fits: one that is too long must not leave all of them unsorted."""
        text = passage.text[:MAX_PASSAGE_CHARS]
        while True:
            shown = show_source(1, replace(passage, text=text))
            try:
                return await self._engine.prepare(
                    [
                        ChatMessage(role="user", content=self._text.fill(shown).rstrip("\n")),
                        ChatMessage(role="assistant", content=question, unfinished=True),
                    ],
                    _SCORED,
                    caller=caller,
                    options=_NO_THINKING if self._engine.info.can_think else None,
                )
            except ContextLengthError:
                if not text:
                    raise
                text = text[: len(text) // 2]


def by_likelihood(
    passages: Sequence[Passage], likelihoods: Sequence[float], weight: float = LIKELIHOOD_WEIGHT
) -> list[Passage]:
    """Sorts passages by their score plus the weighted log-probability of the question after them, best first.

    Of two that are as good, the one that the search found first comes first.
    """
    scored = sorted(zip(passages, likelihoods, strict=True), key=lambda one: -(one[0].score + weight * one[1]))
    return [passage for passage, _ in scored]
