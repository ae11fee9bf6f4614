"""Where chunks have the words of a query, from the index of either database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.store.db.database import is_postgres
from app.store.db.knowledge_models import Chunk, ChunkEntry
from app.store.knowledge.bm25 import Occurrences, WordChunk
from app.store.knowledge.entries import indexed_word

_UNNESTED = text(
    "SELECT kb_entry.id, word.lexeme, word.weights FROM kb_entry, unnest(kb_entry.words) AS word "
    "WHERE kb_entry.id = ANY(:ids) AND word.lexeme = ANY(:words)"
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
    rows = session.execute(
        select(ChunkEntry.id, Chunk.id.label("chunk_id"), Chunk.collection_id, Chunk.tokens)
        .join(Chunk, Chunk.id == ChunkEntry.chunk_id)
        .where(ChunkEntry.id.in_(entry_ids))
    )
    usable = set(collections)  # as a condition of the query, SQLite would read all chunks of the collections
    chunks = [row for row in rows if row.collection_id in usable]
    ids = [row.id for row in chunks]
    found: dict[int, dict[str, Occurrences]] = defaultdict(dict)
    for id, word, occurrences in (_in_postgres if is_postgres(session) else _in_sqlite)(session, ids, stems):
        found[id][word] = occurrences
    return [WordChunk(row.chunk_id, row.tokens, found[row.id]) for row in chunks]


def _in_sqlite(
    session: Session, ids: Sequence[int], stems: Mapping[str, str]
) -> Iterator[tuple[int, str, Occurrences]]:
    rows = session.execute(
        select(ChunkEntry.id, ChunkEntry.title, ChunkEntry.heading, ChunkEntry.words).where(ChunkEntry.id.in_(ids))
    )
    for id, *fields in rows:
        title, heading, words = (field.split(" ") for field in fields)
        for word in {*stems.keys() & title, *stems.keys() & heading, *stems.keys() & words}:
            yield id, stems[word], Occurrences(title.count(word), heading.count(word), words.count(word))


def _in_postgres(
    session: Session, ids: Sequence[int], stems: Mapping[str, str]
) -> Iterator[tuple[int, str, Occurrences]]:
    for id, word, weights in session.execute(_UNNESTED, {"ids": list(ids), "words": list(stems)}):
        yield id, stems[word], Occurrences(weights.count("A"), weights.count("B"), weights.count("D"))
