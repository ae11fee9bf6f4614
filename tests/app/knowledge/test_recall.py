"""How well words find the answers in the project's own documents, and refuse what is in none of them.

The bounds are two questions below what was measured. ``docs/knowledge.md`` has the figures, also those by meaning. An
answer on a page that is newer than the labels counts as none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import NewChunk, Passage
from app.knowledge.chunking import cut
from app.knowledge.evaluation import Scores, ask, score
from app.knowledge.questions import read_questions
from app.knowledge.readers import read_document
from app.knowledge.synonyms import read_thesaurus
from app.services.container import Services
from app.services.knowledge import SYNONYMS, TOKENIZER
from app.settings import AppSettings
from app.store.knowledge.documents import Documents
from app.store.knowledge.reading import ReadingQueue
from app.store.knowledge.search import ChunkSearch
from testing.documents import save_chunks

pytestmark = pytest.mark.full

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent
PAGES = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]


@pytest.fixture
async def search(services: Services) -> ChunkSearch:
    await services.knowledge.ingest.close()  # it would claim the documents
    documents, queue = Documents(services.database), ReadingQueue(services.database, "one")
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    for page in [*PAGES, *sorted((ROOT / "docs").glob("*.md"))]:
        await documents.add(LOCAL_USER_ID, None, page.name, page.read_bytes(), kind="markdown")
        job = await queue.claim_next()
        assert job is not None
        read = read_document(job.data, job.name)
        text, chunks = cut(read.blocks, lambda part: len(tokenizer.encode(part, add_special_tokens=False)))
        rows = [NewChunk(heading=one.heading, start=one.start, end=one.end, tokens=one.tokens) for one in chunks]
        assert await save_chunks(queue, job, read.title, text, rows)
    return ChunkSearch(services.database, read_thesaurus(SYNONYMS))


async def scores_of(search: ChunkSearch, half: str | None, file: str = "questions.jsonl") -> tuple[Scores, list[float]]:
    """Returns the scores of a half, and that of the best passage of each of its questions."""
    best = list[float]()

    async def find(query: str, limit: int) -> Sequence[Passage]:
        found = await search.search(LOCAL_USER_ID, query, limit=limit)
        best.append(best_of(found))
        return found

    questions = read_questions((HERE / file).read_text(encoding="utf-8"), half=half)
    return score(await ask(questions, find)), best


def best_of(found: Sequence[Passage]) -> float:
    return found[0].score if found else 0.0


async def test_words_find_answers_and_refuse_what_no_document_has(search: ChunkSearch) -> None:
    (tuning, best_scores), (held_out, _) = await scores_of(search, "tuning"), await scores_of(search, "held-out")
    assert (tuning.recall_at_3 >= 0.68, held_out.recall_at_3 >= 0.46) == (True, True), (tuning, held_out)
    paraphrased, _ = await scores_of(search, None, "questions-paraphrased.jsonl")
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
