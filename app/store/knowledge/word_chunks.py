"""Where chunks have the words of a query, from the index of either database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from functools import lru_cache

from sqlalchemy import ColumnElement, Text, bindparam, cast, func, literal_column, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.store.db.database import is_postgres
from app.store.db.knowledge_models import Chunk, ChunkEntry, Document
from app.store.db.prepared_statements import ListOf, Prepared, is_among
from app.store.knowledge.bm25 import Occurrences, WordChunk
from app.store.knowledge.entries import indexed_word

MAX_READ_CHUNKS = 1000
"""Chunks whose words SQLite has found are kept, split: some 20 KB for each."""

_Column = ColumnElement[str] | InstrumentedAttribute[str]
_ASKED_WEIGHT = "C"  # no word is stored with it


def _select_entries(*columns: _Column) -> Prepared:
    return Prepared(
        select(Chunk.id, Chunk.collection_id, Chunk.tokens, *columns)
        .join(Chunk, Chunk.id == ChunkEntry.chunk_id)
        .join(Document, (Document.id == Chunk.document_id) & (Document.version == Chunk.version))
        .where(is_among(ChunkEntry.id, "ids"))
    )


def _with_weights(vector: _Column, weights: str) -> ColumnElement[str]:
    """The part of a tsvector that has these weights, as text."""
    return cast(func.ts_filter(vector, literal_column(f"'{{{weights}}}'")), Text)


_IN_SQLITE = _select_entries(ChunkEntry.title, ChunkEntry.heading, ChunkEntry.words)
# PostgreSQL picks the words, since writing and reading all of a chunk takes several times as long. It has no function
# that picks some words of a tsvector, but one that sets their weight, and one that picks a weight.
_IN_POSTGRES = _select_entries(
    _with_weights(ChunkEntry.words, "a,b"),
    _with_weights(
        func.setweight(
            ChunkEntry.words, literal_column(f"'{_ASKED_WEIGHT}'"), bindparam("words", type_=ListOf(Text()))
        ),
        _ASKED_WEIGHT,
    ),
)


def word_chunks(
    session: Session, collections: Sequence[str], entry_ids: Sequence[int], words: Collection[str]
) -> list[WordChunk]:
    """Returns the chunks of the entries that are in the collections, and of the versions that are searched.

    Args:
        words: stems; a chunk tells of no others.
    """
    if not entry_ids:
        return []
    stems = {indexed_word(id, word): word for id in collections for word in words}
    connection = session.connection()
    if is_postgres(session):
        read, rows = _in_postgres, _IN_POSTGRES.rows(connection, {"ids": entry_ids, "words": list(stems)})
    else:
        read, rows = _in_sqlite, _IN_SQLITE.rows(connection, {"ids": entry_ids})
    usable = set(collections)  # as a condition of the query, SQLite would read all chunks of the collections
    return [
        WordChunk(chunk_id, tokens, read(fields, stems))
        for chunk_id, collection_id, tokens, *fields in rows
        if collection_id in usable
    ]


# Keyed by the texts themselves, so that nothing can be out of date: the same chunks are candidates again and again.
@lru_cache(maxsize=MAX_READ_CHUNKS)
def _split(*fields: str) -> tuple[Sequence[Sequence[str]], Set[str]]:
    """Returns the words of each field, which are separated by spaces, and those of all."""
    words = [field.split(" ") for field in fields]
    return words, set().union(*words)


def _in_sqlite(fields: Sequence[str], stems: Mapping[str, str]) -> dict[str, Occurrences]:
    """Reads title, heading and text."""
    words, of_all = _split(*fields)
    return {stems[word]: Occurrences(*(field.count(word) for field in words)) for word in stems.keys() & of_all}


def _in_postgres(fields: Sequence[str], stems: Mapping[str, str]) -> dict[str, Occurrences]:
    """Reads two tsvectors: places in title (weight A) and headings (B), and all places of the words asked for (C)."""
    above, asked = map(_places_by_word, fields)
    return {stems[word]: _read_places(places, above.get(word, "")) for word, places in asked.items()}


def _places_by_word(vector: str) -> dict[str, str]:
    _, *parts = vector.split("'")  # 'word':1A,2B 'word':4A; folded words have no apostrophe
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _read_places(places: str, above: str) -> Occurrences:
    title, heading = above.count("A"), above.count("B")
    return Occurrences(title, heading, places.count(_ASKED_WEIGHT) - title - heading)
