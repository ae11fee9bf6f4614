"""The vectors of chunks in the database.

Rights are no matter here: the background pass reads every chunk, and a search is told the collections of its user.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.knowledge import ChunkText, StoredVectors, place_of
from app.store.db.database import Database
from app.store.db.knowledge_models import Chunk
from app.store.db.prepared_statements import Prepared, is_among

_COLLECTION = sa.table("kb_collection", sa.column("id"), sa.column("revision"))
_DOCUMENT = sa.table("kb_document", sa.column("id"), sa.column("version"))
_VERSION = sa.table("kb_version", sa.column("document_id"), sa.column("version"), sa.column("title"), sa.column("text"))
_CHUNK = sa.table(
    "kb_chunk",
    *map(sa.column, ("id", "document_id", "collection_id", "version", "heading")),
    sa.column("start", sa.BigInteger),
    sa.column("end", sa.BigInteger),
    sa.column("vector", sa.LargeBinary),
    sa.column("vector_of"),
    sa.column("windows", sa.LargeBinary),
)
_IS_SEARCHED = sa.and_(_DOCUMENT.c.id == _CHUNK.c.document_id, _DOCUMENT.c.version == _CHUNK.c.version)


class ChunkVectors:
    """Implements :class:`app.knowledge.dense_search.VectorRecords`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def revision(self) -> str:
        """Returns a text that changes whenever a chunk, its collection or its vector does."""
        statement = sa.select(_COLLECTION.c.id, _COLLECTION.c.revision).order_by(_COLLECTION.c.id)
        rows = await self._database.read(lambda session: session.execute(statement).all())
        return " ".join(f"{id}:{revision}" for id, revision in rows)

    async def unencoded(self, fingerprint: str, limit: int, after: str = "") -> list[ChunkText]:
        """Returns chunks that lack vectors of this encoder, in the order of their ids, those behind ``after``."""
        c, v = _CHUNK.c, _VERSION.c
        # both databases count characters, from 1; PostgreSQL's substr takes no bigint
        words = sa.func.substr(v.text, sa.cast(c.start + 1, sa.Integer), sa.cast(c.end - c.start, sa.Integer))
        statement = (
            sa.select(c.id, c.collection_id, v.title, c.heading, words)
            .join_from(_CHUNK, _DOCUMENT, _IS_SEARCHED)
            .join(_VERSION, sa.and_(v.document_id == c.document_id, v.version == c.version))
            .where(_lacks_vectors(fingerprint), c.id > after)
            .order_by(c.id)
            .limit(limit)
        )
        rows = await self._database.read(lambda session: session.execute(statement).all())
        return [
            ChunkText(chunk_id=id, collection_id=owner, place=place_of(title, heading), text=text or "")
            for id, owner, title, heading, text in rows
        ]

    async def count_unencoded(self, fingerprint: str) -> int:
        """Returns how many chunks lack vectors of this encoder."""
        statement = (
            sa.select(sa.func.count())
            .select_from(_CHUNK)
            .join(_DOCUMENT, _IS_SEARCHED)
            .where(_lacks_vectors(fingerprint))
        )
        return await self._database.read(lambda session: session.scalar(statement) or 0)

    async def save(self, fingerprint: str, vectors: Mapping[str, StoredVectors]) -> None:
        """Stores vectors by chunk id. Chunks that are gone meanwhile are left out."""
        if not vectors:
            return
        c = _CHUNK.c
        update = (
            sa.update(_CHUNK)
            .where(c.id == sa.bindparam("chunk"))
            .values(
                vector=sa.bindparam("bytes", type_=sa.LargeBinary),
                windows=sa.bindparam("parts", type_=sa.LargeBinary),
                vector_of=fingerprint,
            )
        )
        owners = sa.select(c.collection_id).where(c.id.in_(list(vectors)))
        # Before the chunks, as a deletion of a collection locks them; and in one order, for another process that saves.
        hold = sa.select(_COLLECTION.c.id).where(_COLLECTION.c.id.in_(owners)).order_by(_COLLECTION.c.id)
        grow = sa.update(_COLLECTION).where(_COLLECTION.c.id.in_(owners)).values(revision=_COLLECTION.c.revision + 1)

        def write(session: Session) -> None:
            connection = session.connection()
            connection.execute(hold.with_for_update(key_share=True))
            rows = [{"chunk": id, "bytes": one.vector, "parts": one.windows} for id, one in sorted(vectors.items())]
            connection.execute(update, rows)
            connection.execute(grow)

        await self._database.write(write)

    async def encoded(self, fingerprint: str) -> dict[str, str]:
        """Returns the collection of each chunk that has a vector of this encoder, by the chunk's id."""
        statement = (
            sa.select(_CHUNK.c.id, _CHUNK.c.collection_id)
            .join_from(_CHUNK, _DOCUMENT, _IS_SEARCHED)
            .where(_CHUNK.c.vector_of == fingerprint)
        )
        rows = await self._database.read(lambda session: session.execute(statement).all())
        return {id: owner for id, owner in rows}  # noqa: C416 - rows are no pairs to type checkers

    async def vectors(self, fingerprint: str, chunk_ids: Sequence[str]) -> dict[str, bytes]:
        """Returns stored vectors by chunk id, without those that are gone meanwhile."""
        return await self._stored(_VECTORS, fingerprint, chunk_ids)

    async def windows(self, fingerprint: str, chunk_ids: Collection[str]) -> dict[str, bytes]:
        """Returns the stored vectors of windows by chunk id, without chunks that have none of this encoder."""
        return await self._stored(_WINDOWS, fingerprint, chunk_ids)

    async def _stored(self, statement: Prepared, fingerprint: str, chunk_ids: Collection[str]) -> dict[str, bytes]:
        given = {"ids": list(chunk_ids), "fingerprint": fingerprint}
        return dict(await self._database.read_rows(lambda connection: statement.rows(connection, given)))


def _lacks_vectors(fingerprint: str) -> sa.ColumnElement[bool]:
    c = _CHUNK.c
    return sa.or_(c.vector_of.is_(None), c.vector_of != fingerprint, c.windows.is_(None))


def _select_stored(column: InstrumentedAttribute[bytes | None]) -> Prepared:
    return Prepared(
        sa.select(Chunk.id, column).where(
            is_among(Chunk.id, "ids"), Chunk.vector_of == sa.bindparam("fingerprint"), column.is_not(None)
        )
    )


_VECTORS, _WINDOWS = _select_stored(Chunk.vector), _select_stored(Chunk.windows)
