"""Stores documents of the knowledge base whose chunks a test has cut itself."""

from __future__ import annotations

from collections.abc import Iterable

from app.domain.knowledge import NewChunk, ReadingJob
from app.store.knowledge.entry_batches import entry_batches, stored_title
from app.store.knowledge.reading import ReadingQueue


async def save_chunks(queue: ReadingQueue, job: ReadingJob, title: str, text: str, chunks: Iterable[NewChunk]) -> bool:
    """Stores what was read, as :meth:`ReadingQueue.save` does."""
    title = stored_title(title, job.name)
    return await queue.save(job, title, text, entry_batches(job.index, title, text, chunks))
