"""How well words find the answers in the project's own documents, and refuse what is in none of them.

The bounds are two questions below what was measured. ``docs/knowledge.md`` has the figures, also those by meaning. An
answer on a page that is newer than the labels counts as none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import Passage
from app.knowledge.evaluation import Scores, ask, score
from app.knowledge.questions import read_questions
from app.knowledge.synonyms import read_thesaurus
from app.services.container import Services
from app.services.knowledge import SYNONYMS
from app.settings import AppSettings
from app.store.knowledge.search import ChunkSearch
from testing.own_pages import QUESTIONS, add_own_pages

pytestmark = pytest.mark.full

HERE = Path(__file__).parent


@pytest.fixture
async def search(services: Services) -> ChunkSearch:
    await services.knowledge.ingest.close()  # it would claim the documents
    await add_own_pages(services.database)
    return ChunkSearch(services.database, read_thesaurus(SYNONYMS))


async def scores_of(search: ChunkSearch, half: str | None, file: Path = QUESTIONS) -> tuple[Scores, list[float]]:
    """Returns the scores of a half, and that of the best passage of each of its questions."""
    best = list[float]()

    async def find(query: str, limit: int) -> Sequence[Passage]:
        found = await search.search(LOCAL_USER_ID, query, limit=limit)
        best.append(best_of(found))
        return found

    questions = read_questions(file.read_text(encoding="utf-8"), half=half)  # noqa: ASYNC240
    return score(await ask(questions, find)), best


def best_of(found: Sequence[Passage]) -> float:
    return found[0].score if found else 0.0


async def test_words_find_answers_and_refuse_what_no_document_has(search: ChunkSearch) -> None:
    (tuning, best_scores), (held_out, _) = await scores_of(search, "tuning"), await scores_of(search, "held-out")
    assert (tuning.recall_at_3 >= 0.68, held_out.recall_at_3 >= 0.46) == (True, True), (tuning, held_out)
    paraphrased, _ = await scores_of(search, None, HERE / "questions-paraphrased.jsonl")
    assert paraphrased.recall_at_3 >= 0.3, paraphrased
    best = {"answerable": best_scores}
    for name in ("unanswerable", "unanswerable-held-out", "other-software"):
        queries = (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        best[name] = [best_of(await search.search(LOCAL_USER_ID, query, limit=1)) for query in queries]
    threshold = AppSettings().knowledge_min_score
    refused = {name: sum(one < threshold for one in scores) / len(scores) for name, scores in best.items()}
    assert refused["answerable"] <= 0.04, refused
    assert refused["unanswerable"] >= 0.55, refused
    assert refused["unanswerable-held-out"] >= 0.62, refused
    assert refused["other-software"] >= 0.3, refused
