"""Indexes chunks without searchable words, such as after a copy of the database, in the background."""

from __future__ import annotations

from sqlalchemy import delete, exists, insert, select, update
from sqlalchemy.orm import Session

from app.store.db.database import Database
from app.store.db.knowledge_models import Chunk, ChunkEntry, DocumentVersion
from app.store.db.models import table_of
from app.store.knowledge.entries import chunk_entry
from app.store.knowledge.spans import text_between

BATCH_CHUNKS = 200  # takes some tenths of a second, during which SQLite's other writers wait


class ChunkIndex:
    """Brings the words of chunks up to date. Takes no user id: it applies to all chunks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def catch_up(self) -> bool:
        """Indexes one batch. Returns whether there may be more."""
        if not await self._database.read(lambda session: session.scalar(select(exists().where(~Chunk.indexed)))):
            return False
        return await self._database.write(_index_some)


def _index_some(session: Session) -> bool:
    dialect = session.get_bind().dialect.name
    rows = session.execute(
        select(
            Chunk.id,
            Chunk.collection_id,
            Chunk.heading,
            DocumentVersion.title,
            text_between(Chunk.start, Chunk.end).label("text"),
        )
        .join(
            DocumentVersion,
            (DocumentVersion.document_id == Chunk.document_id) & (DocumentVersion.version == Chunk.version),
        )
        .where(~Chunk.indexed)
        .order_by(Chunk.id)
        .limit(BATCH_CHUNKS)
        .with_for_update(skip_locked=True, key_share=True, of=Chunk)
    ).all()
    if not rows:
        return False
    ids = [row.id for row in rows]
    session.execute(delete(ChunkEntry).where(ChunkEntry.chunk_id.in_(ids)))
    session.execute(
        insert(table_of(ChunkEntry)),
        [
            {"chunk_id": row.id}
            | chunk_entry(dialect, row.collection_id, row.title, row.heading, row.text or "")._asdict()
            for row in rows
        ],
    )
    session.execute(
        update(Chunk).where(Chunk.id.in_(ids)).values(indexed=True).execution_options(synchronize_session=False)
    )
    return len(rows) == BATCH_CHUNKS
