"""How many more answers come first once SmolLM2 135M has sorted what words and MiniLM find in the project's own pages.

The bounds are about two questions below what was measured: ``docs/benchmarks.md`` has the figures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import SearchWay
from app.knowledge.evaluation import Outcome, Scores, rank_of_answer, score
from app.knowledge.questions import read_questions
from app.knowledge.reranking import by_likelihood
from app.services.knowledge import make_reranker
from engine import Engine, EngineSettings
from testing.minilm import minilm
from testing.own_pages import QUESTIONS, search_of_own_pages
from testing.question_likelihoods import question_likelihoods
from testing.smollm2 import smollm2

pytestmark = pytest.mark.full

COUNT = 12


async def scores_of(half: str, folder: Path) -> tuple[Scores, Scores]:
    """Returns the scores of the search, and of its first passages sorted."""
    questions = read_questions(QUESTIONS.read_text(encoding="utf-8"), half=half)
    settings = EngineSettings(model=str(smollm2()), encoder=str(minilm()), _env_file=None)
    async with Engine(settings) as engine, search_of_own_pages(folder, engine) as search:
        found = [
            await search.search(LOCAL_USER_ID, one.text, collections=None, limit=COUNT, way=SearchWay.FUSED)
            for one in questions
        ]
        texts = [one.text for one in questions]
        likelihoods = await question_likelihoods(make_reranker(engine), list(zip(texts, found, strict=True)))
    ranked = [by_likelihood(passages, scored) for passages, scored in zip(found, likelihoods, strict=True)]
    before, after = (
        score([Outcome(one, rank_of_answer(one, passages)) for one, passages in zip(questions, order, strict=True)])
        for order in (found, ranked)
    )
    return before, after


@pytest.mark.parametrize(("half", "recall_at_1", "recall_at_3"), [("tuning", 0.66, 0.82), ("held-out", 0.5, 0.68)])
async def test_the_likelihood_of_the_question_brings_answers_first(
    half: str, recall_at_1: float, recall_at_3: float, tmp_path: Path
) -> None:
    before, after = await scores_of(half, tmp_path)
    assert after.mrr >= before.mrr + 0.02, (before, after)
    assert after.recall_at_1 >= recall_at_1, (before, after)
    assert after.recall_at_3 >= recall_at_3, (before, after)
