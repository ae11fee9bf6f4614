"""How many chunks of each collection have a word. Counts follow the chunks that are indexed, in the same transaction.

A transaction that changes them holds the row of the collection, so that two writers never wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection as Group
from collections.abc import Iterable, Mapping

from sqlalchemy import Integer, bindparam, delete, desc, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.store.db.database import is_postgres
from app.store.db.knowledge_models import Chunk, DocumentVersion, WordCount
from app.store.db.models import table_of
from app.store.db.prepared_statements import Prepared, is_among
from app.store.knowledge.entries import EntryStems
from app.store.knowledge.spans import text_between

EVERY_CHUNK = ""
"""Stands for a word that every chunk has."""
_CHUNKS_AT_ONCE = 500
# Each search asks this, of a misspelt word with hundreds of neighbours.
_COUNTS = Prepared(
    select(WordCount.word, func.sum(WordCount.chunks))
    .where(is_among(WordCount.collection_id, "collections"), is_among(WordCount.word, "words"))
    .group_by(WordCount.word)
)
_BETWEEN = Prepared(
    select(WordCount.word, func.sum(WordCount.chunks).label("in_all"))
    .where(
        is_among(WordCount.collection_id, "collections"),
        WordCount.word >= bindparam("start"),
        WordCount.word < bindparam("end"),
    )
    .group_by(WordCount.word)
    .order_by(desc("in_all"), WordCount.word)
    .limit(bindparam("max_words", type_=Integer()))
)
_WORDS_AT_ONCE = 2000  # PostgreSQL ends a transaction whose client prepares a statement for too long


def count_entries(session: Session, collection_id: str, entries: Iterable[EntryStems]) -> None:
    """Adds the words of new chunks."""
    _add(session, collection_id, _counted(entries))


def uncount_document(session: Session, collection_id: str, document_id: str) -> None:
    """Takes out the words of a document's chunks, before they are deleted."""
    chunks = (
        select(Chunk.id, Chunk.heading, DocumentVersion.title, text_between(Chunk.start, Chunk.end).label("text"))
        .join(
            DocumentVersion,
            (DocumentVersion.document_id == Chunk.document_id) & (DocumentVersion.version == Chunk.version),
        )
        .where(Chunk.document_id == document_id, Chunk.indexed)
    )
    rows = session.execute(chunks.execution_options(yield_per=_CHUNKS_AT_ONCE))
    counted = _counted(EntryStems.of(row.title, row.heading, row.text or "") for row in rows)
    if counted:
        _add(session, collection_id, {word: -count for word, count in counted.items()})
        session.execute(delete(WordCount).where(WordCount.collection_id == collection_id, WordCount.chunks <= 0))


def chunk_counts(session: Session, collections: Group[str], words: Iterable[str]) -> dict[str, int]:
    """Returns how many chunks of the collections have each of the words; words that none has are left out."""
    given = {"collections": list(collections), "words": list(words)}
    return {word: int(chunks) for word, chunks in _COUNTS.rows(session.connection(), given)}


def words_between(session: Session, collections: Group[str], start: str, end: str, *, max_words: int) -> dict[str, int]:
    """Returns words from ``start`` to before ``end`` with their numbers of chunks, the most frequent first."""
    given = {"collections": list(collections), "start": start, "end": end, "max_words": max_words}
    return {word: int(chunks) for word, chunks in _BETWEEN.rows(session.connection(), given)}


def _counted(entries: Iterable[EntryStems]) -> Counter[str]:
    counted = Counter[str]()
    for entry in entries:
        counted.update(entry.distinct())
        counted[EVERY_CHUNK] += 1
    return counted


def _add(session: Session, collection_id: str, counted: Mapping[str, int]) -> None:
    if not counted:
        return
    insert = (postgresql.insert if is_postgres(session) else sqlite.insert)(table_of(WordCount))
    upsert = insert.on_conflict_do_update(
        index_elements=["collection_id", "word"], set_={"chunks": WordCount.chunks + insert.excluded.chunks}
    )
    rows = [{"collection_id": collection_id, "word": word, "chunks": count} for word, count in counted.items()]
    for start in range(0, len(rows), _WORDS_AT_ONCE):
        session.execute(upsert, rows[start : start + _WORDS_AT_ONCE])
