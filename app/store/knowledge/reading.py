"""The queue of documents to read: claims with leases, progress, and what reading found.

Takes no user id: reading acts for the server, on documents that users with the right to it have added.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from app.domain.ids import new_id
from app.domain.knowledge import DocumentState, NewChunk, ReadingJob
from app.store.chat.leases import lease_until
from app.store.db.database import Database, is_postgres
from app.store.db.knowledge_models import Chunk, ChunkEntry, Document, DocumentVersion
from app.store.db.models import table_of
from app.store.db.rows import change_rows
from app.store.knowledge.documents import changed_collection, hold_collection
from app.store.knowledge.entries import EntryStems
from app.store.knowledge.word_counts import count_entries, uncount_document

LEASE_SECONDS = 60.0
MAX_ATTEMPTS = 3
"""How often reading a version may begin. A file that ends the process each time must not do so forever."""
_GAVE_UP = "Reading this file ended the server's reader several times. Add it in another format."


class ReadingQueue:
    """The repository of what is to be read.

    Args:
        owner: id of this start of the process.
        lease_seconds: how long a claim lasts, by default :data:`LEASE_SECONDS`. :meth:`progress` renews it; after a
            crash another process takes over.
    """

    def __init__(self, database: Database, owner: str, lease_seconds: float | None = None) -> None:
        self._database = database
        self._owner = owner
        self._lease_seconds = LEASE_SECONDS if lease_seconds is None else lease_seconds

    async def claim_next(self) -> ReadingJob | None:
        """Claims the document that has waited longest, or whose reader has died; None if there is none."""

        def is_waiting(session: Session) -> bool:
            return session.scalar(select(exists().where(_waits(session)))) is True

        def work(session: Session) -> ReadingJob | None:
            while True:
                document = session.scalars(
                    select(Document)
                    .where(_waits(session))
                    .order_by(Document.updated_at, Document.id)
                    .limit(1)
                    .with_for_update(skip_locked=True)
                ).one_or_none()
                if document is None:
                    return None
                data = session.scalar(
                    select(DocumentVersion.raw).where(
                        DocumentVersion.document_id == document.id, DocumentVersion.version == document.newest
                    )
                )
                if document.attempts >= MAX_ATTEMPTS or data is None:
                    _fail(session, document.id, document.newest, _GAVE_UP)
                    session.flush()
                    session.expire(document)
                    continue
                session.execute(
                    update(Document)
                    .where(Document.id == document.id)
                    .values(
                        state=DocumentState.READING.value,
                        reader=self._owner,
                        lease_until=lease_until(session, self._lease_seconds),
                        attempts=Document.attempts + 1,
                        progress=0.0,
                    )
                    .execution_options(synchronize_session=False)
                )
                return ReadingJob(
                    document_id=document.id,
                    version=document.newest,
                    name=document.name,
                    kind=document.kind,
                    data=data,
                )

        # Asked every other second: an idle server must not take the write lock for it.
        return await self._database.write(work) if await self._database.read(is_waiting) else None

    async def progress(self, job: ReadingJob, share: float) -> bool:
        """Stores how much has been read (0 to 1) and renews the lease. False: the claim is lost; stop reading."""

        def work(session: Session) -> bool:
            renewed = lease_until(session, self._lease_seconds)
            held = update(Document).where(self._held(job)).values(progress=share, lease_until=renewed)
            return change_rows(session, held) > 0

        return await self._database.write(work)

    async def save_chunks(self, job: ReadingJob, title: str, text: str, chunks: Sequence[NewChunk]) -> bool:
        """Stores what was read, and searches this version instead of the one before, all in one transaction.

        Returns False, having changed nothing, if the claim is lost: the document was removed, has a newer version, or
        another process reads it.
        """
        title, text = title.replace("\0", "")[:500], text.replace("\0", "�")

        def work(session: Session) -> bool:
            hold_collection(session, job.document_id)
            document = session.scalars(select(Document).where(self._held(job)).with_for_update()).one_or_none()
            if document is None:
                return False
            title_ = title.strip() or document.name
            uncount_document(session, document.collection_id, document.id)
            session.execute(delete(Chunk).where(Chunk.document_id == document.id))
            session.execute(
                update(DocumentVersion)
                .where(DocumentVersion.document_id == document.id, DocumentVersion.version == job.version)
                .values(text=text, title=title_, raw=None)
                .execution_options(synchronize_session=False)
            )
            _insert_chunks(session, document, job.version, title_, text, chunks)
            session.execute(
                update(Document)
                .where(Document.id == document.id)
                .values(
                    title=title_,
                    version=job.version,
                    state=DocumentState.READY.value,
                    error=None,
                    progress=1.0,
                    reader=None,
                    lease_until=None,
                    updated_at=datetime.now(UTC),
                )
                .execution_options(synchronize_session=False)
            )
            changed_collection(session, document.collection_id)
            return True

        return await self._database.write(work)

    async def fail(self, job: ReadingJob, sentence: str) -> bool:
        """Ends reading with a sentence for the user. The version before, if any, is still searched.

        Returns False if the claim is lost.
        """

        def work(session: Session) -> bool:
            held = session.scalar(select(Document.id).where(self._held(job)).with_for_update()) is not None
            if held:
                _fail(session, job.document_id, job.version, sentence)
            return held

        return await self._database.write(work)

    async def release(self, job: ReadingJob) -> None:
        """Gives a claim back unread, such as when the server shuts down. It counts as no attempt."""
        released = (
            update(Document)
            .where(self._held(job))
            .values(
                state=DocumentState.WAITING.value,
                reader=None,
                lease_until=None,
                progress=0.0,
                attempts=case((Document.attempts > 0, Document.attempts - 1), else_=0),
            )
        )
        await self._database.write(lambda session: change_rows(session, released))

    def _held(self, job: ReadingJob) -> ColumnElement[bool]:
        return and_(
            Document.id == job.document_id,
            Document.newest == job.version,
            Document.state == DocumentState.READING,
            Document.reader == self._owner,
        )


def _waits(session: Session) -> ColumnElement[bool]:
    return or_(
        Document.state == DocumentState.WAITING, and_(Document.state == DocumentState.READING, _expired(session))
    )


def _expired(session: Session) -> ColumnElement[bool]:
    now: Any = func.now() if is_postgres(session) else datetime.now(UTC)
    return or_(Document.lease_until.is_(None), Document.lease_until < now)


def _fail(session: Session, document_id: str, version: int, sentence: str) -> None:
    session.execute(
        update(Document)
        .where(Document.id == document_id)
        .values(
            state=DocumentState.FAILED.value,
            error=sentence,
            reader=None,
            lease_until=None,
            updated_at=datetime.now(UTC),
        )
        .execution_options(synchronize_session=False)
    )
    session.execute(
        update(DocumentVersion)
        .where(DocumentVersion.document_id == document_id, DocumentVersion.version == version)
        .values(raw=None)
        .execution_options(synchronize_session=False)
    )


def _insert_chunks(
    session: Session, document: Document, version: int, title: str, text: str, chunks: Sequence[NewChunk]
) -> None:
    dialect = session.get_bind().dialect.name
    rows, stems = list[dict[str, Any]](), list[EntryStems]()
    for ordinal, chunk in enumerate(chunks):
        rows.append(
            {
                "id": new_id(),
                "document_id": document.id,
                "collection_id": document.collection_id,
                "version": version,
                "ordinal": ordinal,
                "heading": chunk.heading,
                "start": chunk.start,
                "end": chunk.end,
                "tokens": chunk.tokens,
                "indexed": True,
            }
        )
        stems.append(EntryStems.of(title, chunk.heading, text[chunk.start : chunk.end]))
    if rows:
        entries = [
            {"chunk_id": row["id"]} | entry.columns(dialect, document.collection_id)
            for row, entry in zip(rows, stems, strict=True)
        ]
        session.execute(insert(table_of(Chunk)), rows)
        session.execute(insert(table_of(ChunkEntry)), entries)
        count_entries(session, document.collection_id, stems)
