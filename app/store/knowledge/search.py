"""Full-text search of chunks: by the words of a query and their synonyms, ranked alike on both databases."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from sqlalchemy import BindParameter, Connection, bindparam, select
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import Passage
from app.errors import NotFound
from app.store.db.database import Database
from app.store.db.knowledge_models import Chunk, Collection, Document, DocumentVersion
from app.store.db.prepared_statements import Prepared, is_among
from app.store.knowledge.access import NO_COLLECTION, may_use
from app.store.knowledge.bm25 import Relevance, Statistics
from app.store.knowledge.candidates import candidates
from app.store.knowledge.concepts import Concept, Thesaurus, read_query
from app.store.knowledge.entries import HEADING
from app.store.knowledge.guesses import guess
from app.store.knowledge.spans import text_between
from app.store.knowledge.word_chunks import word_chunks
from app.store.knowledge.word_counts import EVERY_CHUNK, chunk_counts


class ChunkSearch:
    """Finds chunks by words, among the collections that the user may use."""

    def __init__(self, database: Database, thesaurus: Thesaurus | None = None) -> None:
        self._database = database
        self._thesaurus = thesaurus or Thesaurus()

    async def search(
        self, user_id: str, query: str, *, collections: Sequence[str] | None = None, limit: int = 10
    ) -> list[Passage]:
        """The passages that match best, best first.

        Args:
            collections: None is all that the user may use.

        Raises:
            NotFound: one of the collections is missing, or the user may not use it.
        """

        def work(session: Session) -> list[Passage]:
            usable = _usable(session.connection(), user_id, collections)
            ranked = self._rank(session, usable, query)
            best = heapq.nlargest(limit, ranked.items(), key=lambda one: (one[1], one[0]))
            return _passages(session.connection(), user_id, dict(best), usable)

        return await self._database.read(work)

    async def rank(self, user_id: str, query: str, *, collections: Sequence[str] | None) -> dict[str, float]:
        """Returns the chunks that may match with their scores, 0 to 1, by their ids. Raises as :meth:`search`."""
        return await self._database.read(
            lambda session: self._rank(session, _usable(session.connection(), user_id, collections), query)
        )

    def _rank(self, session: Session, usable: Sequence[str], query: str) -> dict[str, float]:
        concepts = read_query(query, self._thesaurus)
        if not concepts or not usable:
            return {}
        words = _words(concepts)
        counts = chunk_counts(session, usable, [EVERY_CHUNK, *words, *(HEADING + word for word in words)])
        concepts = guess(session, usable, concepts, counts.keys())
        if guessed := _words(concepts) - words:
            counts |= chunk_counts(session, usable, [*guessed, *(HEADING + word for word in guessed)])
        words |= guessed
        statistics = Statistics(counts)
        likely = candidates(session, usable, concepts, statistics)
        found = word_chunks(session, usable, likely, words)
        if len(found) < len(likely):  # the others are stale
            likely = candidates(session, usable, concepts, statistics, skip_stale=True)
            found = word_chunks(session, usable, likely, words)
        relevance = Relevance(concepts, statistics)
        scores = {chunk.chunk_id: relevance.of(chunk) for chunk in found}
        return {id: score for id, score in scores.items() if score > 0}

    async def usable(self, user_id: str, collections: Sequence[str] | None) -> list[str]:
        """Returns the collections that the user may use, of these or of all.

        Raises:
            NotFound: one of them is missing, or the user may not use it.
        """
        return await self._database.read_rows(lambda connection: _usable(connection, user_id, collections))

    async def passages(self, user_id: str, scores: Mapping[str, float]) -> list[Passage]:
        """Returns the chunks that the user may see as passages, best first, by the scores of the chunks' ids."""
        return await self._database.read_rows(lambda connection: _passages(connection, user_id, scores))


def _words(concepts: Sequence[Concept]) -> set[str]:
    return {word for concept in concepts for phrase in concept.variants for word in phrase}


def _usable(connection: Connection, user_id: str, wanted: Sequence[str] | None) -> list[str]:
    rows = _USABLE[user_id == LOCAL_USER_ID].rows(connection, {"user_id": user_id})
    usable = [id for (id,) in rows]
    if wanted is None:
        return usable
    if not {*wanted} <= {*usable}:
        raise NotFound(NO_COLLECTION)
    return list(dict.fromkeys(wanted))


def _passages(
    connection: Connection, user_id: str, scores: Mapping[str, float], collections: Sequence[str] | None = None
) -> list[Passage]:
    given = {"user_id": user_id, "ids": list(scores)}
    rows = _PASSAGES[user_id == LOCAL_USER_ID].rows(connection, given)
    found = [
        Passage(
            document_id=document_id,
            version=version,
            title=title,
            heading=heading,
            text=text,
            start=start,
            end=end,
            score=scores[id],
        )
        for id, collection_id, document_id, version, heading, start, end, title, text in rows
        if collections is None or collection_id in collections
    ]
    return sorted(found, key=lambda passage: (-passage.score, passage.document_id, passage.start))


def _select_usable(user_id: str | BindParameter[str]) -> Prepared:
    return Prepared(select(Collection.id).where(may_use(user_id)))


def _select_passages(user_id: str | BindParameter[str]) -> Prepared:
    """Selects the chunks that the user may see, of those whose ids are given."""
    return Prepared(
        select(
            Chunk.id,
            Document.collection_id,
            Chunk.document_id,
            Chunk.version,
            Chunk.heading,
            Chunk.start,
            Chunk.end,
            DocumentVersion.title,
            text_between(Chunk.start, Chunk.end),
        )
        .select_from(Chunk)
        .join(Document, (Document.id == Chunk.document_id) & (Document.version == Chunk.version))
        .join(Collection, Collection.id == Document.collection_id)
        .join(
            DocumentVersion,
            (DocumentVersion.document_id == Chunk.document_id) & (DocumentVersion.version == Chunk.version),
        )
        .where(is_among(Chunk.id, "ids"), may_use(user_id))
    )


# Built once: constructing the conditions costs more than executing them. By whether the user is the local one.
_USABLE = {True: _select_usable(LOCAL_USER_ID), False: _select_usable(bindparam("user_id"))}
_PASSAGES = {True: _select_passages(LOCAL_USER_ID), False: _select_passages(bindparam("user_id"))}
