"""Cuts what was read of a document into batches that one transaction each can store.

Everything that takes long is done here, outside of the database's writer and of the server: stems, entries and counts.
The process that reads documents calls it, so nothing here imports the database.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.knowledge import EntryIndex, NewChunk
from app.store.knowledge.entries import EntryStems

MAX_BATCH_CHUNKS = 200
MAX_BATCH_WORDS = 10_000
"""Of all chunks of a batch: storing one takes about a tenth of a second, during which SQLite's other writers wait."""
MAX_TITLE_CHARS = 500


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """A chunk and its entry."""

    heading: str
    start: int
    end: int
    tokens: int
    title_words: str  #: the columns of a :class:`~app.store.db.knowledge_models.ChunkEntry`
    heading_words: str
    words: str


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Consecutive chunks of a document."""

    first: int  #: the ordinal of the first chunk
    share: float  #: of the document's chunks, with this batch and those before it
    chunks: list[BatchChunk]
    counts: Mapping[str, int]  #: how many of the chunks have each word

    def to_json(self) -> str:
        rows = [
            (one.heading, one.start, one.end, one.tokens, one.title_words, one.heading_words, one.words)
            for one in self.chunks
        ]
        return json.dumps([self.first, self.share, rows, self.counts], ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> EntryBatch:
        """Reads what :meth:`to_json` wrote.

        Raises:
            ValueError, TypeError: it is something else.
        """
        first, share, rows, counts = json.loads(line)
        return cls(first, share, [BatchChunk(*row) for row in rows], counts)


def stored_title(title: str, name: str) -> str:
    """The title as the database has it; the file's name if there is none."""
    return title.replace("\0", "")[:MAX_TITLE_CHARS].strip() or name


def entry_batches(index: EntryIndex, title: str, text: str, chunks: Iterable[NewChunk]) -> Iterator[EntryBatch]:
    """Yields the chunks of a document with their entries.

    Args:
        title: see :func:`stored_title`.
    """
    chunks = list(chunks)
    batch, counts, words, first = list[BatchChunk](), Counter[str](), 0, 0
    for number, chunk in enumerate(chunks, start=1):
        stems = EntryStems.of(title, chunk.heading, text[chunk.start : chunk.end])
        columns: dict[str, Any] = stems.columns(index.dialect, index.collection_id)
        batch.append(
            BatchChunk(
                chunk.heading,
                chunk.start,
                chunk.end,
                chunk.tokens,
                columns["title"],
                columns["heading"],
                columns["words"],
            )
        )
        counts.update(stems.distinct())
        words += len(stems.title) + len(stems.heading) + len(stems.text)
        if len(batch) == MAX_BATCH_CHUNKS or words >= MAX_BATCH_WORDS or number == len(chunks):
            yield EntryBatch(first, number / len(chunks), batch, counts)
            batch, counts, words, first = [], Counter(), 0, number
