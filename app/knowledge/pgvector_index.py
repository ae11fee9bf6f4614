"""An index of vectors in PostgreSQL, by the extension pgvector: shared by all servers, and not in their memory.

It is derived from the chunks' stored vectors and lives in a table of its own for each encoder, which is no part of the
schema: it can be dropped at any time, and is filled again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.knowledge.vectors import ChunkVector, ScoredChunk, Vector, unit
from app.store.db.database import Database, is_postgres

MAX_DIMENSIONS = 4000
"""HNSW of pgvector takes at most so many dimensions of float16: https://github.com/pgvector/pgvector#hnsw"""
CANDIDATES = 100
"""Candidates that HNSW looks at, at least; more find more of the nearest, and take longer (``hnsw.ef_search``)."""
MAX_CANDIDATES = 1000
MAX_SCANNED = 100_000
"""Vectors after which a search ends although its collections have too few of them."""
_PREFIX = "kb_vectors_"


async def has_pgvector(database: Database) -> bool:
    """Whether the database is PostgreSQL with pgvector 0.8 or later, which an administrator has added to it.

    It is not added here: a backup could then be restored only where it is installed, without anyone having chosen
    that. Versions before 0.8 filter after the search, so that a small collection would find too little.
    """

    def ask(session: Session) -> bool:
        if not is_postgres(session):
            return False
        version = session.scalar(sa.text("SELECT extversion FROM pg_extension WHERE extname = 'vector'"))
        return tuple(map(int, re.findall(r"\d+", str(version))[:2])) >= (0, 8)

    return await database.read(ask)


class PgvectorIndex:
    """Implements :class:`app.knowledge.dense_index.DenseIndex`. Approximate: HNSW finds nearly all of the nearest.

    Create it with :meth:`open`.
    """

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table

    @classmethod
    async def open(cls, database: Database, fingerprint: str, dimensions: int) -> PgvectorIndex:
        """Creates the table of an encoder if there is none, and drops those of other encoders.

        Args:
            fingerprint: of the encoder, hexadecimal.

        Raises:
            ValueError: pgvector cannot index vectors of so many dimensions.
        """
        if dimensions > MAX_DIMENSIONS:
            raise ValueError(f"pgvector indexes at most {MAX_DIMENSIONS} dimensions, not {dimensions}")
        if not re.fullmatch(r"[0-9a-f]+", fingerprint):
            raise ValueError(f"no fingerprint: {fingerprint}")
        table = _PREFIX + fingerprint

        def create(session: Session) -> None:
            session.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('kb_vectors'))"))
            others = session.scalars(
                sa.text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema AND tablename LIKE :prefix"),
                {"prefix": _PREFIX.replace("_", r"\_") + "%"},
            )
            for other in [one for one in others if one != table]:
                session.execute(sa.text(f'DROP TABLE "{other}"'))
            session.execute(
                sa.text(
                    f"CREATE TABLE IF NOT EXISTS {table} (chunk_id text PRIMARY KEY, collection_id text NOT NULL, "
                    f"vector halfvec({int(dimensions)}) NOT NULL)"
                )
            )
            # for small collections, which are compared whole
            session.execute(sa.text(f"CREATE INDEX IF NOT EXISTS {table}_owner ON {table} (collection_id)"))
            session.execute(
                sa.text(f"CREATE INDEX IF NOT EXISTS {table}_hnsw ON {table} USING hnsw (vector halfvec_cosine_ops)")
            )

        await database.write(create)
        return cls(database, table)

    async def put(self, vectors: Sequence[ChunkVector]) -> None:
        """See :class:`app.knowledge.dense_index.DenseIndex`."""
        if not vectors:
            return
        statement = sa.text(
            f"INSERT INTO {self._table} (chunk_id, collection_id, vector) "
            "VALUES (:chunk_id, :collection_id, CAST(:vector AS halfvec)) ON CONFLICT (chunk_id) DO UPDATE "
            "SET collection_id = excluded.collection_id, vector = excluded.vector"
        )
        rows = [
            {"chunk_id": one.chunk_id, "collection_id": one.collection_id, "vector": _literal(one.vector)}
            for one in sorted(vectors, key=lambda one: one.chunk_id)  # in one order, so that replicas don't deadlock
        ]

        def insert(session: Session) -> None:
            session.execute(statement, rows)

        await self._database.write(insert)

    async def remove(self, chunk_ids: Collection[str]) -> None:
        """See :class:`app.knowledge.dense_index.DenseIndex`."""
        statement = sa.text(f"DELETE FROM {self._table} WHERE chunk_id = ANY(:ids)")

        def delete(session: Session) -> None:
            session.execute(statement, {"ids": list(chunk_ids)})

        await self._database.write(delete)

    async def owners(self) -> dict[str, str]:
        """See :class:`app.knowledge.dense_index.DenseIndex`."""
        statement = sa.text(f"SELECT chunk_id, collection_id FROM {self._table}")
        return await self._database.read(
            lambda session: {row.chunk_id: row.collection_id for row in session.execute(statement)}
        )

    async def search(self, query: Vector, *, collections: Collection[str], limit: int) -> list[ScoredChunk]:
        """See :class:`app.knowledge.dense_index.DenseIndex`."""
        if limit < 1 or not collections:
            return []
        statement = sa.text(
            f"SELECT chunk_id, 1 - (vector <=> CAST(:query AS halfvec)) AS score FROM {self._table} "
            "WHERE collection_id = ANY(:collections) ORDER BY vector <=> CAST(:query AS halfvec) LIMIT :limit"
        )
        candidates = min(max(CANDIDATES, 2 * limit), MAX_CANDIDATES)

        def select(session: Session) -> list[ScoredChunk]:
            # Goes on beyond the candidates until enough of them are in the collections, in the exact order.
            session.execute(sa.text("SET LOCAL hnsw.iterative_scan = strict_order"))
            session.execute(sa.text(f"SET LOCAL hnsw.ef_search = {candidates}"))
            session.execute(sa.text(f"SET LOCAL hnsw.max_scan_tuples = {MAX_SCANNED}"))
            rows = session.execute(
                statement, {"query": _literal(query), "collections": list(collections), "limit": limit}
            )
            return [ScoredChunk(chunk_id, score) for chunk_id, score in rows]

        return await self._database.read(select)


def _literal(vector: Vector) -> str:
    """Writes a vector as pgvector reads it, its length made 1."""
    return "[" + ",".join(format(number, ".6g") for number in unit(vector).tolist()) + "]"
