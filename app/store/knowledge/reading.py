"""The queue of documents to read: claims with leases, progress, and what reading found.

Takes no user id: reading acts for the server, on documents that users with the right to it have added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from app.domain.ids import new_id
from app.domain.knowledge import DocumentState, EntryIndex, ReadingJob
from app.store.chat.leases import lease_until
from app.store.db.database import Database, is_postgres
from app.store.db.knowledge_models import Chunk, ChunkEntry, Document, DocumentVersion
from app.store.db.models import table_of
from app.store.db.rows import change_rows
from app.store.knowledge.entry_batches import EntryBatch
from app.store.knowledge.stale_chunks import changed_collection, delete_some_chunks, hold_collection
from app.store.knowledge.word_counts import count_batch

LEASE_SECONDS = 60.0
MAX_ATTEMPTS = 3
"""How often reading a version may begin. A file that ends the process each time must not do so forever."""
READ_SHARE = 0.5
"""Of a document's progress. The rest is storing its chunks."""
RETRY_SECONDS = 30.0
"""Pause after an attempt whose reader has ended, times the attempts: memory may be short for a while."""
_GAVE_UP = (
    "Reading this file ended the server's reader several times: it may take more memory than the server has. Split it, "
    "or add it in another format."
)


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
                    index=EntryIndex(document.collection_id, session.get_bind().dialect.name),
                    has_stale_chunks=document.has_stale_chunks,
                )

        # Asked every other second: an idle server must not take the write lock for it.
        return await self._database.write(work) if await self._database.read(is_waiting) else None

    async def progress(self, job: ReadingJob, share: float) -> bool:
        """Stores how much has been read (0 to 1) and renews the lease. False: the claim is lost; stop reading."""

        def work(session: Session) -> bool:
            renewed = lease_until(session, self._lease_seconds)
            values = {"progress": READ_SHARE * share, "lease_until": renewed}
            held = update(Document).where(self._held(job)).values(values)
            return change_rows(session, held) > 0

        return await self._database.write(work)

    async def save(self, job: ReadingJob, title: str, text: str, batches: Iterable[EntryBatch]) -> bool:
        """Stores what was read in a transaction for each batch, the last of which searches this version instead of the
        one before. Other writes go through between them, and each renews the lease.

        After a crash, the next reader deletes what is there of this version, and begins anew.

        Args:
            title: see :func:`~app.store.knowledge.entry_batches.stored_title`.
            batches: iterated in a thread.

        Returns False if the claim is lost: the document was removed, has a newer version, or another process reads it.
        """
        if job.has_stale_chunks and not await self._delete_stale(job):
            return False
        remaining = iter(batches)
        batch = await asyncio.to_thread(next, remaining, None)
        while (following := await asyncio.to_thread(next, remaining, None)) is not None:
            assert batch is not None
            if not await self._database.write(partial(self._add_batch, job=job, batch=batch)):
                return False
            batch = following
        text = text.replace("\0", "�")
        return await self._database.write(partial(self._finish, job=job, title=title, text=text, batch=batch))

    async def _delete_stale(self, job: ReadingJob) -> bool:
        """Deletes what earlier versions and attempts have left. Returns False if the claim is lost."""

        def work(session: Session) -> bool | None:
            document = self._claimed(session, job)
            if document is None:
                return None
            document.lease_until = lease_until(session, self._lease_seconds)
            return delete_some_chunks(session, [document])

        while (deleted := await self._database.write(work)) is False:
            pass
        return deleted is not None

    def _add_batch(self, session: Session, *, job: ReadingJob, batch: EntryBatch) -> bool:
        document = self._claimed(session, job)
        if document is None:
            return False
        document.has_stale_chunks = True  # until the last batch is there
        document.progress = READ_SHARE + (1 - READ_SHARE) * batch.share
        document.lease_until = lease_until(session, self._lease_seconds)
        _insert_batch(session, job, batch)
        return True

    def _finish(self, session: Session, *, job: ReadingJob, title: str, text: str, batch: EntryBatch | None) -> bool:
        document = self._claimed(session, job)
        if document is None:
            return False
        if batch is not None:
            _insert_batch(session, job, batch)
        session.execute(
            update(DocumentVersion)
            .where(DocumentVersion.document_id == document.id, DocumentVersion.version == job.version)
            .values(text=text, title=title, raw=None)
            .execution_options(synchronize_session=False)
        )
        document.title, document.version = title, job.version
        document.state, document.error, document.progress = DocumentState.READY.value, None, 1.0
        document.reader, document.lease_until, document.updated_at = None, None, datetime.now(UTC)
        session.flush()
        document.has_stale_chunks = not delete_some_chunks(session, [document])  # those of the version before
        changed_collection(session, document.collection_id)
        return True

    def _claimed(self, session: Session, job: ReadingJob) -> Document | None:
        """The document, locked; None if the claim is lost."""
        hold_collection(session, job.document_id)
        return session.scalars(select(Document).where(self._held(job)).with_for_update()).one_or_none()

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

    async def postpone(self, job: ReadingJob) -> None:
        """Lets the document wait after its reader has ended unexpectedly. That was an attempt."""

        def work(session: Session) -> None:
            document = session.scalars(select(Document).where(self._held(job)).with_for_update()).one_or_none()
            if document is not None:
                document.state, document.reader, document.progress = DocumentState.WAITING.value, None, 0.0
                document.lease_until = lease_until(session, RETRY_SECONDS * document.attempts)

        await self._database.write(work)

    def _held(self, job: ReadingJob) -> ColumnElement[bool]:
        return and_(
            Document.id == job.document_id,
            Document.newest == job.version,
            Document.state == DocumentState.READING,
            Document.reader == self._owner,
        )


def _waits(session: Session) -> ColumnElement[bool]:
    now: Any = func.now() if is_postgres(session) else datetime.now(UTC)
    return and_(
        Document.state.in_((DocumentState.WAITING.value, DocumentState.READING.value)),
        or_(Document.lease_until.is_(None), Document.lease_until < now),
    )


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


def _insert_batch(session: Session, job: ReadingJob, batch: EntryBatch) -> None:
    collection_id = job.index.collection_id
    chunks, entries = list[dict[str, Any]](), list[dict[str, Any]]()
    for ordinal, chunk in enumerate(batch.chunks, start=batch.first):
        id = new_id()
        chunks.append(
            {
                "id": id,
                "document_id": job.document_id,
                "collection_id": collection_id,
                "version": job.version,
                "ordinal": ordinal,
                "heading": chunk.heading,
                "start": chunk.start,
                "end": chunk.end,
                "tokens": chunk.tokens,
                "indexed": True,
            }
        )
        entries.append(
            {"chunk_id": id, "title": chunk.title_words, "heading": chunk.heading_words, "words": chunk.words}
        )
    session.execute(insert(table_of(Chunk)), chunks)
    session.execute(insert(table_of(ChunkEntry)), entries)
    count_batch(session, collection_id, batch.counts, len(batch.chunks))
