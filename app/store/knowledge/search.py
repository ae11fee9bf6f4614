"""Full-text search of chunks: any of the query's words, ranked, on both databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, cast, column, func, literal_column, select, table
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.orm import Session

from app.domain.knowledge import Passage
from app.domain.words import fold_words
from app.store.db.database import Database, is_postgres
from app.store.db.knowledge_models import Chunk, ChunkEntry, Collection, Document, DocumentVersion
from app.store.knowledge.access import may_use, used_collection
from app.store.knowledge.entries import collection_mark
from app.store.knowledge.spans import text_between
from app.store.knowledge.stems import STOP_WORDS, stem

MAX_QUERY_WORDS = 24
TITLE_WEIGHT, HEADING_WEIGHT = 6.0, 3.0  # a word of the text counts 1
_MIN_PREFIX = 3  # a shorter last word is searched as it is: nearly every chunk has a word that begins so

_FTS = table("kb_entry_fts", column("rowid"))


class ChunkSearch:
    """Finds chunks by words, among the collections that the user may use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(
        self, user_id: str, query: str, *, collections: Sequence[str] | None = None, limit: int = 10
    ) -> list[Passage]:
        """The passages that match best, best first.

        Args:
            collections: None is all that the user may use.

        Raises:
            NotFound: one of the collections is missing, or the user may not use it.
        """
        words = query_words(query)

        def work(session: Session) -> list[Passage]:
            usable = _usable(session, user_id, collections)
            if not words or not usable:
                return []
            ranked = (_ranked_postgres if is_postgres(session) else _ranked_sqlite)(session, words, usable, limit)
            entries = select(ChunkEntry.chunk_id, ChunkEntry.id).where(ChunkEntry.id.in_(list(ranked)))
            scores = {chunk_id: ranked[id] for chunk_id, id in session.execute(entries)}
            return _passages(session, user_id, scores, Collection.id.in_(usable))

        return await self._database.read(work)

    async def usable(self, user_id: str, collections: Sequence[str] | None) -> list[str]:
        """Returns the collections that the user may use, of these or of all.

        Raises:
            NotFound: one of them is missing, or the user may not use it.
        """
        return await self._database.read(lambda session: _usable(session, user_id, collections))

    async def passages(self, user_id: str, scores: Mapping[str, float]) -> list[Passage]:
        """Returns the chunks that the user may see as passages, best first, by the scores of the chunks' ids."""
        return await self._database.read(lambda session: _passages(session, user_id, scores))


def query_words(query: str) -> list[str]:
    """The stems that a query asks for, without stop words unless it has no others."""
    found = fold_words(query)
    telling = [word for word in found if word not in STOP_WORDS]
    return list(dict.fromkeys(map(stem, telling or found)))[:MAX_QUERY_WORDS]


def _usable(session: Session, user_id: str, wanted: Sequence[str] | None) -> list[str]:
    usable = list(session.scalars(select(Collection.id).where(may_use(user_id))))
    if wanted is None:
        return usable
    return [used_collection(session, user_id, id).id for id in dict.fromkeys(wanted)]


def _ranked_sqlite(session: Session, words: Sequence[str], collections: Sequence[str], limit: int) -> dict[int, float]:
    parts = [
        f'"{collection_mark(id)}{word}"' + (" *" if _is_prefix(words, word) else "")
        for id in collections
        for word in words
    ]
    matches: Any = literal_column("kb_entry_fts").op("MATCH")(" OR ".join(parts))
    score: Any = func.bm25(literal_column("kb_entry_fts"), TITLE_WEIGHT, HEADING_WEIGHT, 1.0)
    found = select(_FTS.c.rowid, score.label("score")).select_from(_FTS).where(matches).order_by(score).limit(limit)
    return {row.rowid: -row.score for row in session.execute(found)}


def _ranked_postgres(
    session: Session, words: Sequence[str], collections: Sequence[str], limit: int
) -> dict[int, float]:
    parts = [
        f"'{collection_mark(id)}{word}'" + (":*" if _is_prefix(words, word) else "")
        for id in collections
        for word in words
    ]
    query = cast(" | ".join(parts), TSQUERY)
    weights: Any = literal_column("'{0.17,0.17,0.5,1.0}'::real[]")  # D, C, B, A
    score = func.ts_rank(weights, ChunkEntry.words, query, 1)
    found = (
        select(ChunkEntry.id, score.label("score"))
        .where(ChunkEntry.words.op("@@")(query))
        .order_by(score.desc(), ChunkEntry.id)
        .limit(limit)
    )
    return {row.id: row.score for row in session.execute(found)}


def _is_prefix(words: Sequence[str], word: str) -> bool:
    return word == words[-1] and len(word) >= _MIN_PREFIX


def _passages(
    session: Session, user_id: str, scores: Mapping[str, float], *conditions: ColumnElement[bool]
) -> list[Passage]:
    rows = session.execute(
        select(
            Chunk.id,
            Chunk.document_id,
            Chunk.version,
            Chunk.heading,
            Chunk.start,
            Chunk.end,
            DocumentVersion.title,
            text_between(Chunk.start, Chunk.end).label("text"),
        )
        .select_from(Chunk)
        .join(Document, (Document.id == Chunk.document_id) & (Document.version == Chunk.version))
        .join(Collection, Collection.id == Document.collection_id)
        .join(
            DocumentVersion,
            (DocumentVersion.document_id == Chunk.document_id) & (DocumentVersion.version == Chunk.version),
        )
        .where(Chunk.id.in_(list(scores)), may_use(user_id), *conditions)
    )
    found = [
        Passage(
            document_id=row.document_id,
            version=row.version,
            title=row.title,
            heading=row.heading,
            text=row.text,
            start=row.start,
            end=row.end,
            score=scores[row.id],
        )
        for row in rows
    ]
    return sorted(found, key=lambda passage: (-passage.score, passage.document_id, passage.start))
