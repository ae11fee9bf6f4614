"""How many more answers come first once SmolLM2 135M has sorted what words and MiniLM find in the project's own pages.

The bounds are about two questions below what was measured: ``docs/benchmarks.md`` has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import Passage, SearchWay
from app.knowledge.evaluation import Outcome, Scores, rank_of_answer, score
from app.knowledge.questions import Question, read_questions
from app.knowledge.reranking import by_likelihood
from app.services.knowledge import make_reranker
from engine import Engine, EngineSettings
from testing.minilm import minilm
from testing.own_pages import QUESTIONS, search_of_own_pages
from testing.question_likelihoods import question_likelihoods
from testing.smollm2 import smollm2

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

COUNT = 12
BOUNDS = {"tuning": (0.66, 0.82), "held-out": (0.5, 0.68)}
"""Of recall at 1 and at 3, by half."""
MIN_GAIN = 0.02  # of the MRR


async def test_the_likelihood_of_the_question_brings_answers_first(tmp_path: Path) -> None:
    questions = read_questions(QUESTIONS.read_text(encoding="utf-8"))
    settings = EngineSettings(model=str(smollm2()), encoder=str(minilm()), _env_file=None)
    async with Engine(settings) as engine, search_of_own_pages(tmp_path, engine) as search:
        found = [
            await search.search(LOCAL_USER_ID, one.text, collections=None, limit=COUNT, way=SearchWay.FUSED)
            for one in questions
        ]
        texts = [one.text for one in questions]
        likelihoods = await question_likelihoods(make_reranker(engine), list(zip(texts, found, strict=True)))
    ranked = [by_likelihood(passages, scored) for passages, scored in zip(found, likelihoods, strict=True)]
    for half, (recall_at_1, recall_at_3) in BOUNDS.items():
        before, after = (scores_of(half, questions, order) for order in (found, ranked))
        assert after.mrr >= before.mrr + MIN_GAIN, (half, before, after)
        assert after.recall_at_1 >= recall_at_1, (half, before, after)
        assert after.recall_at_3 >= recall_at_3, (half, before, after)


def scores_of(half: str, questions: Sequence[Question], found: Sequence[Sequence[Passage]]) -> Scores:
    """Returns the scores of a half of the questions, with the passages that were found for each of all."""
    asked = [(one, passages) for one, passages in zip(questions, found, strict=True) if one.half == half]
    return score([Outcome(one, rank_of_answer(one, passages)) for one, passages in asked])
