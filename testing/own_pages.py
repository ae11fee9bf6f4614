"""The project's own pages as documents, by which its search is judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tokenizers import Tokenizer

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import NewChunk
from app.knowledge.chunking import cut
from app.knowledge.dense_search import DenseSearch, index_in
from app.knowledge.hybrid_search import HybridSearch
from app.knowledge.readers import read_document
from app.knowledge.synonyms import read_thesaurus
from app.services.knowledge import SYNONYMS, TOKENIZER
from app.store.db.database import Database
from app.store.knowledge.chunk_vectors import ChunkVectors
from app.store.knowledge.documents import Documents
from app.store.knowledge.reading import ReadingQueue
from app.store.knowledge.search import ChunkSearch
from app.store.maintenance.migrate import migrate
from engine import ChatEngine
from testing.documents import save_chunks

ROOT = Path(__file__).parents[1]
QUESTIONS = ROOT / "tests" / "app" / "knowledge" / "questions.jsonl"
"""Questions about the pages, in two halves: see :mod:`app.knowledge.questions`."""


@asynccontextmanager
async def search_of_own_pages(folder: Path, engine: ChatEngine) -> AsyncIterator[HybridSearch]:
    """Yields the search of the pages in a new SQLite database; by meaning, too, if the engine has an encoder."""
    url = f"sqlite:///{folder / 'own_pages.db'}"
    await asyncio.to_thread(migrate, url)
    database = Database(url)
    try:
        await add_own_pages(database)
        dense = DenseSearch(lambda: engine.encoder, ChunkVectors(database), index_in(database))
        while engine.encoder is not None and not await dense.catch_up():
            pass
        yield HybridSearch(ChunkSearch(database, read_thesaurus(SYNONYMS)), dense)
    finally:
        await database.close()


def own_pages() -> list[Path]:
    """The pages' files."""
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*pages, *sorted((ROOT / "docs").glob("*.md"))]


async def add_own_pages(database: Database) -> None:
    """Adds the pages, read and cut as the product does it. Nothing else may read documents meanwhile."""
    documents, queue = Documents(database), ReadingQueue(database, "one")
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    for page in own_pages():
        await documents.add(LOCAL_USER_ID, None, page.name, page.read_bytes(), kind="markdown")
        job = await queue.claim_next()
        assert job is not None
        read = read_document(job.data, job.name)
        text, chunks = cut(read.blocks, lambda part: len(tokenizer.encode(part, add_special_tokens=False)))
        rows = [NewChunk(heading=one.heading, start=one.start, end=one.end, tokens=one.tokens) for one in chunks]
        assert await save_chunks(queue, job, read.title, text, rows)
