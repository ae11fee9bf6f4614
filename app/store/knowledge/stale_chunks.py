"""Deletes the chunks that no search finds: those of replaced versions, of removed documents, and of half versions.

A transaction deletes a batch, as SQLite's other writers wait for it: a large document has a hundred thousand chunks,
which would take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from sqlalchemy import Row, delete, or_, select, update
from sqlalchemy.orm import Session

from app.domain.knowledge import DocumentState
from app.store.db.database import Database
from app.store.db.knowledge_models import Chunk, Collection, Document, DocumentVersion
from app.store.db.rows import change_rows
from app.store.knowledge.word_counts import uncount_chunks

MAX_BATCH_DOCUMENTS = 100
MAX_BATCH_CHUNKS = 200
MAX_BATCH_TOKENS = 20_000
"""Of all chunks of a batch: deleting one takes about a tenth of a second."""
MAX_BATCH_BYTES = 64 * 2**20
"""Of the files whose texts a batch deletes."""


class StaleChunks:
    """Takes no user id: the documents say which of their chunks are stale."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def clean_up(self, collection_id: str | None = None) -> bool:
        """Deletes one batch, of any collection or of this one. Returns whether there may be more.

        Chunks of a document that is being read are left alone: its reader deletes them.
        """
        is_stale = Document.has_stale_chunks & (Document.state != DocumentState.READING.value)
        if collection_id is not None:
            is_stale &= Document.collection_id == collection_id
        first = select(Document.id).where(is_stale).order_by(Document.id).limit(1)
        document_id = await self._database.read(lambda session: session.scalar(first))
        if document_id is None:
            return False

        def work(session: Session) -> None:
            held = hold_collection(session, document_id)
            documents = session.scalars(
                select(Document)
                .where(is_stale, Document.collection_id == held)
                .order_by(Document.id)
                .limit(MAX_BATCH_DOCUMENTS)
                .with_for_update()
            ).all()
            if not delete_some_chunks(session, documents):
                return
            for document in documents:
                document.has_stale_chunks = document.removed
            delete_some_documents(session, [one for one in documents if one.removed])

        await self._database.write(work)
        return True


def hide_documents(session: Session, collection_id: str, document_id: str | None = None) -> int:
    """Removes the documents of a collection, or one of them: only the cleanup sees them from now on.

    The transaction holds the collection. Returns how many there were. Their names are free for others.
    """
    wanted = update(Document).where(Document.collection_id == collection_id, ~Document.removed)
    if document_id is not None:
        wanted = wanted.where(Document.id == document_id)
    hidden = change_rows(
        session,
        wanted.values(
            removed=True,
            has_stale_chunks=True,
            name=Document.id,
            version=None,
            state=DocumentState.FAILED.value,
            error=None,
            reader=None,
            lease_until=None,
        ),
    )
    changed_collection(session, collection_id)
    return hidden


def delete_some_chunks(session: Session, documents: Sequence[Document]) -> bool:
    """Deletes a batch of the chunks that are not of the versions that are searched, and uncounts their words.

    The transaction holds the documents, and their collection: it is the same. Returns whether none is left.
    """
    rows = session.execute(
        select(Chunk.id, Chunk.tokens, Chunk.collection_id)
        .join(Document, Document.id == Chunk.document_id)
        .where(
            Chunk.document_id.in_([one.id for one in documents]),
            or_(Document.version.is_(None), Document.version != Chunk.version),
        )
        .limit(MAX_BATCH_CHUNKS + 1)
    ).all()
    chosen = _within(MAX_BATCH_TOKENS, rows, [row.tokens for row in rows])[:MAX_BATCH_CHUNKS]
    if chosen:
        ids = [row.id for row in chosen]
        uncount_chunks(session, chosen[0].collection_id, ids)
        session.execute(delete(Chunk).where(Chunk.id.in_(ids)).execution_options(synchronize_session=False))
    return len(chosen) == len(rows)


def delete_some_documents(session: Session, documents: Sequence[Document]) -> None:
    """Deletes a batch of the versions of removed documents without chunks, and the documents that have none left."""
    ids = [one.id for one in documents]
    rows = session.execute(
        select(DocumentVersion.document_id, DocumentVersion.version, DocumentVersion.size)
        .where(DocumentVersion.document_id.in_(ids))
        .order_by(DocumentVersion.document_id, DocumentVersion.version)
    ).all()
    chosen = _within(MAX_BATCH_BYTES, rows, [row.size for row in rows])
    left = {row.document_id for row in rows[len(chosen) :]}
    session.execute(
        delete(Document)
        .where(Document.id.in_([id for id in ids if id not in left]))
        .execution_options(synchronize_session=False)
    )
    for row in chosen:
        if row.document_id in left:
            version = (DocumentVersion.document_id == row.document_id) & (DocumentVersion.version == row.version)
            session.execute(delete(DocumentVersion).where(version).execution_options(synchronize_session=False))


def _within(limit: int, rows: Sequence[Row[Any]], sizes: Sequence[int]) -> Sequence[Row[Any]]:
    """The first rows whose sizes reach the limit, one at least."""
    before = accumulate(sizes, initial=0)
    return [row for row, so_far in zip(rows, before, strict=False) if so_far < limit]


def hold_collection(session: Session, document_id: str) -> str | None:
    """Locks the row of the document's collection, before a transaction that will count a change locks the document.

    Returns the collection's id; None if the document or its collection is gone.

    A deletion of the collection locks them in this order; in the other, PostgreSQL would end one of the two.
    """
    into = select(Document.collection_id).where(Document.id == document_id).scalar_subquery()
    return session.scalar(select(Collection.id).where(Collection.id == into).with_for_update(key_share=True))


def changed_collection(session: Session, collection_id: str) -> None:
    """Counts a change of a collection's searchable chunks."""
    session.execute(
        update(Collection)
        .where(Collection.id == collection_id)
        .values(revision=Collection.revision + 1)
        .execution_options(synchronize_session=False)
    )
