"""The project's own pages as documents, by which its search is judged."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import NewChunk
from app.knowledge.chunking import cut
from app.knowledge.readers import read_document
from app.services.knowledge import TOKENIZER
from app.store.db.database import Database
from app.store.knowledge.documents import Documents
from app.store.knowledge.reading import ReadingQueue
from testing.documents import save_chunks

ROOT = Path(__file__).parents[1]
QUESTIONS = ROOT / "tests" / "app" / "knowledge" / "questions.jsonl"
"""Questions about the pages, in two halves: see :mod:`app.knowledge.questions`."""


async def add_own_pages(database: Database) -> int:
    """Adds the pages, read and cut as the product does it, where nothing else reads; returns how many chunks."""
    documents, queue = Documents(database), ReadingQueue(database, "one")
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    count = 0
    for page in [*pages, *sorted((ROOT / "docs").glob("*.md"))]:
        await documents.add(LOCAL_USER_ID, None, page.name, page.read_bytes(), kind="markdown")
        job = await queue.claim_next()
        assert job is not None
        read = read_document(job.data, job.name)
        text, chunks = cut(read.blocks, lambda part: len(tokenizer.encode(part, add_special_tokens=False)))
        rows = [NewChunk(heading=one.heading, start=one.start, end=one.end, tokens=one.tokens) for one in chunks]
        assert await save_chunks(queue, job, read.title, text, rows)
        count += len(rows)
    return count
