"""Indexes chunks without searchable words, such as after a copy of the database, in the background."""

from __future__ import annotations

from collections.abc import Set

from sqlalchemy import delete, exists, insert, select, tuple_, update
from sqlalchemy.orm import Session

from app.store.db.database import Database
from app.store.db.knowledge_models import Chunk, ChunkEntry, Collection, DocumentVersion
from app.store.db.models import table_of
from app.store.knowledge.entries import EntryStems
from app.store.knowledge.word_counts import count_entries

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
    waiting = select(Chunk.id).where(~Chunk.indexed).order_by(Chunk.id).limit(BATCH_CHUNKS)
    owners = select(Chunk.collection_id).where(Chunk.id.in_(session.scalars(waiting).all()))
    # Before the chunks, as a deletion of a collection locks them; and in one order, for another process that indexes.
    hold = select(Collection.id).where(Collection.id.in_(owners)).order_by(Collection.id)
    held = session.scalars(hold.with_for_update(key_share=True)).all()
    rows = session.execute(
        select(
            Chunk.id,
            Chunk.collection_id,
            Chunk.heading,
            Chunk.document_id,
            Chunk.version,
            Chunk.start,
            Chunk.end,
            DocumentVersion.title,
        )
        .join(
            DocumentVersion,
            (DocumentVersion.document_id == Chunk.document_id) & (DocumentVersion.version == Chunk.version),
        )
        .where(~Chunk.indexed, Chunk.collection_id.in_(held))
        .order_by(Chunk.id)
        .limit(BATCH_CHUNKS)
        .with_for_update(skip_locked=True, key_share=True, of=Chunk)
    ).all()
    if not rows:
        return False
    ids = [row.id for row in rows]
    texts = _texts(session, {(row.document_id, row.version) for row in rows})
    stems = {
        row.id: EntryStems.of(row.title, row.heading, texts[row.document_id, row.version][row.start : row.end])
        for row in rows
    }
    session.execute(delete(ChunkEntry).where(ChunkEntry.chunk_id.in_(ids)))
    session.execute(
        insert(table_of(ChunkEntry)),
        [{"chunk_id": row.id} | stems[row.id].columns(dialect, row.collection_id) for row in rows],
    )
    for collection_id in held:
        count_entries(session, collection_id, [stems[row.id] for row in rows if row.collection_id == collection_id])
    session.execute(
        update(Chunk).where(Chunk.id.in_(ids)).values(indexed=True).execution_options(synchronize_session=False)
    )
    return len(rows) == BATCH_CHUNKS


def _texts(session: Session, versions: Set[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Reads whole texts: each part of a long one that the database cuts takes it as long."""
    rows = session.execute(
        select(DocumentVersion.document_id, DocumentVersion.version, DocumentVersion.text).where(
            tuple_(DocumentVersion.document_id, DocumentVersion.version).in_(versions)
        )
    )
    return {(document_id, version): text or "" for document_id, version, text in rows}
