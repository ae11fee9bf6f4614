"""Where chunks have the words of a query, from the index of either database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session

from app.store.db.database import is_postgres
from app.store.db.knowledge_models import Chunk, ChunkEntry
from app.store.db.prepared_statements import Prepared, is_among
from app.store.knowledge.bm25 import Occurrences, WordChunk
from app.store.knowledge.entries import indexed_word

MAX_READ_CHUNKS = 1000
"""Chunks whose words are kept, split: some 20 KB for each."""

# PostgreSQL's as text: unnest() would make a row of every word, most of which the query does not have
_ENTRIES = Prepared(
    select(
        Chunk.id,
        Chunk.collection_id,
        Chunk.tokens,
        ChunkEntry.title,
        ChunkEntry.heading,
        cast(ChunkEntry.words, Text),
    )
    .join(Chunk, Chunk.id == ChunkEntry.chunk_id)
    .where(is_among(ChunkEntry.id, "ids"))
)


def word_chunks(
    session: Session, collections: Sequence[str], entry_ids: Sequence[int], words: Collection[str]
) -> list[WordChunk]:
    """Returns the chunks of the entries that are in the collections.

    Args:
        words: stems; a chunk tells of no others.
    """
    if not entry_ids:
        return []
    stems = {indexed_word(id, word): word for id in collections for word in words}
    rows = _ENTRIES.rows(session.connection(), {"ids": entry_ids})
    usable = set(collections)  # as a condition of the query, SQLite would read all chunks of the collections
    read = _in_postgres if is_postgres(session) else _in_sqlite
    return [
        WordChunk(chunk_id, tokens, read(fields, stems))
        for chunk_id, collection_id, tokens, *fields in rows
        if collection_id in usable
    ]


# Keyed by the texts themselves, so that nothing can be out of date: the same chunks are candidates again and again.
@lru_cache(maxsize=MAX_READ_CHUNKS)
def _occurrences(*fields: str) -> Mapping[str, Occurrences]:
    """Reads title, heading and text, whose words are separated by spaces."""
    title, heading, text = (Counter(field.split(" ")) for field in fields)
    return {word: _shared(title[word], heading[word], text[word]) for word in title | heading | text}


_shared = lru_cache(maxsize=1000)(Occurrences)  # a chunk has most words once, in its text


@lru_cache(maxsize=MAX_READ_CHUNKS)
def _places_by_word(vector: str) -> Mapping[str, str]:
    _, *parts = vector.split("'")  # 'word':1A,2B,3 'word':4; folded words have no apostrophe
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _in_sqlite(fields: Sequence[str], stems: Mapping[str, str]) -> dict[str, Occurrences]:
    occurrences = _occurrences(*fields)
    return {stems[word]: occurrences[word] for word in stems.keys() & occurrences.keys()}


def _in_postgres(fields: Sequence[str], stems: Mapping[str, str]) -> dict[str, Occurrences]:
    """Reads a tsvector, behind two empty fields, whose words of the title have weight A, those of headings B."""
    places = _places_by_word(fields[-1])
    return {stems[word]: _read_places(places[word]) for word in stems.keys() & places.keys()}


def _read_places(places: str) -> Occurrences:
    title, heading = places.count("A"), places.count("B")
    return Occurrences(title, heading, places.count(",") + 1 - title - heading)
