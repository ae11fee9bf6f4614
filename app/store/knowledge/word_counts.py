"""How many chunks of each collection have a word. Counts follow the chunks that are indexed, in the same transaction.

A transaction that changes them holds the row of the collection, so that two writers never wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection as Group
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Integer, Text, bindparam, cast, delete, desc, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.store.db.database import is_postgres
from app.store.db.knowledge_models import Chunk, ChunkEntry, WordCount
from app.store.db.models import table_of
from app.store.db.prepared_statements import Prepared, is_among
from app.store.knowledge.entries import EntryStems, entry_words

EVERY_CHUNK = ""
"""Stands for a word that every chunk has."""
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
_ENTRIES = Prepared(
    select(ChunkEntry.title, ChunkEntry.heading, cast(ChunkEntry.words, Text))
    .join(Chunk, Chunk.id == ChunkEntry.chunk_id)
    .where(is_among(Chunk.id, "ids"), Chunk.indexed)
)
_DELETE_UNUSED = Prepared(
    delete(WordCount).where(
        WordCount.collection_id == bindparam("of"), is_among(WordCount.word, "words"), WordCount.chunks <= 0
    )
)
_WORDS_AT_ONCE = 2000  # PostgreSQL ends a transaction whose client prepares a statement for too long


def count_entries(session: Session, collection_id: str, entries: Iterable[EntryStems]) -> None:
    """Adds the words of new chunks."""
    _add(session, collection_id, _counted(entries))


def count_batch(session: Session, collection_id: str, counts: Mapping[str, int], chunks: int) -> None:
    """Adds the words of new chunks that were counted before.

    Args:
        counts: how many of the chunks have each word.
    """
    _add(session, collection_id, {**counts, EVERY_CHUNK: chunks})


def uncount_chunks(session: Session, collection_id: str, chunk_ids: Sequence[str]) -> None:
    """Takes out the words of a collection's chunks, before they are deleted. Their entries have them."""
    dialect = session.get_bind().dialect.name
    entries = _ENTRIES.rows(session.connection(), {"ids": list(chunk_ids)})
    counted = Counter[str]()
    for columns in entries:
        counted.update(entry_words(dialect, collection_id, columns))
    if entries:
        counted[EVERY_CHUNK] = len(entries)
        _add(session, collection_id, {word: -count for word, count in counted.items()})
        _DELETE_UNUSED.run(session.connection(), {"of": collection_id, "words": list(counted)})


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
