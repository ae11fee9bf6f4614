"""Documents and their versions, as users see and change them."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime

from sqlalchemy import Row, Select, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.domain.knowledge import AddedDocument, ChunkView, DocumentSource, DocumentState, DocumentView, TextSpan
from app.domain.views import Page
from app.errors import Conflict, InvalidInput, LimitReached, NotAllowed, NotFound
from app.store.db.database import Database
from app.store.db.knowledge_models import (
    KNOWLEDGE_COLLECTION_ID,
    Chunk,
    Collection,
    Document,
    DocumentVersion,
)
from app.store.db.rows import is_id
from app.store.desk.audit import add_event
from app.store.knowledge.access import can_edit, may_use, used_collection, used_document
from app.store.knowledge.limits import KnowledgeLimits
from app.store.knowledge.spans import text_between
from app.store.knowledge.stale_chunks import (
    delete_some_chunks,
    delete_some_documents,
    hide_documents,
    hold_collection,
)

PAGE_DOCUMENTS = 50
PAGE_CHUNKS = 50
MAX_NAME_CHARS = 500
_NO_VERSION = "This document has no such version."
_ADD_ATTEMPTS = 3
"""The first may meet another process that adds the same name; the next finds what that one has added."""


class Documents:
    """The repository of documents. Every method takes the user, and acts within their rights."""

    def __init__(self, database: Database, limits: KnowledgeLimits | None = None) -> None:
        self._database = database
        self._limits = limits or KnowledgeLimits()

    async def add(
        self,
        user_id: str,
        collection_id: str | None,
        name: str,
        data: bytes,
        *,
        kind: str,
        source: DocumentSource = DocumentSource.UPLOAD,
        replace: bool = True,
    ) -> AddedDocument:
        """Adds a file to a collection, to be read later. A name that exists gets a new version.

        The version that is searched stays so until the new one has been read. The same content again changes nothing,
        unless reading it has failed.

        Args:
            collection_id: None is the collection that every knowledge base has.
            replace: whether other content may become a new version of a document that has this name.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
            NotAllowed: the user may not edit it.
            Conflict: there is a document of this name, and it may not be replaced.
            InvalidInput: the name is empty or too long.
            LimitReached: the collection has as many documents or bytes as it may.
        """
        name = name.strip().replace("\0", "")
        if not name or len(name) > MAX_NAME_CHARS:
            raise InvalidInput(f"A document's name has 1 to {MAX_NAME_CHARS} characters.")
        into = collection_id or KNOWLEDGE_COLLECTION_ID
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())

        def work(session: Session) -> AddedDocument:
            used_collection(session, user_id, into)
            _require_editor(session, user_id, into)
            now = datetime.now(UTC)
            document = session.scalars(
                select(Document).where(Document.collection_id == into, Document.name == name).with_for_update()
            ).one_or_none()
            if document is not None:
                newest = session.get(DocumentVersion, (document.id, document.newest))
                same = newest is not None and newest.content_hash == digest
                if same and document.state != DocumentState.FAILED:
                    state = DocumentState(document.state)
                    return AddedDocument(id=document.id, version=document.newest, state=state, changed=False)
                if not replace and not same:
                    raise Conflict(f'The collection has a document "{name}" already. Choose another title.')
            self._require_room(session, into, document, len(data))
            if document is None:
                document = Document(
                    id=new_id(), collection_id=into, name=name, title=name, version=None, newest=0, created_at=now
                )
                session.add(document)
            document.kind, document.source = kind, source.value
            document.state, document.error, document.progress = DocumentState.WAITING.value, None, 0.0
            document.reader, document.lease_until, document.attempts = None, None, 0
            document.newest, document.updated_at = document.newest + 1, now
            session.flush()
            # No reply rests on a version that was never read.
            unread = (DocumentVersion.document_id == document.id) & DocumentVersion.text.is_(None)
            session.execute(delete(DocumentVersion).where(unread))
            session.add(
                DocumentVersion(
                    document_id=document.id,
                    version=document.newest,
                    content_hash=digest,
                    size=len(data),
                    title=name,
                    raw=data,
                    created_by=user_id,
                    created_at=now,
                )
            )
            add_event(
                session,
                user_id,
                AuditAction.DOCUMENT_ADDED,
                document.id,
                collection=into,
                version=document.newest,
                bytes=len(data),
                source=source.value,
                name=name,
            )
            return AddedDocument(id=document.id, version=document.newest, state=DocumentState.WAITING, changed=True)

        for _ in range(_ADD_ATTEMPTS):
            try:
                return await self._database.write(work)
            except IntegrityError as error:  # another process has added this name, or deleted the collection
                problem = error
        raise Conflict("This document was changed by another request meanwhile. Try again.") from problem

    async def page(
        self, user_id: str, collection_id: str | None = None, *, cursor: str | None = None, limit: int = PAGE_DOCUMENTS
    ) -> Page[DocumentView]:
        """A page of the documents that the user may see, latest first.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
        """

        def work(session: Session) -> Page[DocumentView]:
            query = _documents(user_id)
            if collection_id is not None:
                used_collection(session, user_id, collection_id)
                query = query.where(Document.collection_id == collection_id)
            if cursor is not None:
                query = query.where(Document.id < cursor)
            found = [_view(row) for row in session.execute(query.order_by(Document.id.desc()).limit(limit + 1))]
            return Page(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

        if cursor is not None and not is_id(cursor):
            raise InvalidInput("The cursor is not one that a list of documents returned.")
        return await self._database.read(work)

    async def get(self, user_id: str, document_id: str) -> DocumentView:
        """The document.

        Raises:
            NotFound: it is missing, or the user may not see it.
        """

        def work(session: Session) -> DocumentView:
            used_document(session, user_id, document_id)
            return _view(session.execute(_documents(user_id).where(Document.id == document_id)).one())

        return await self._database.read(work)

    async def remove(self, user_id: str, document_id: str) -> None:
        """Removes a document with all its versions. Citations keep their quotations.

        Nothing finds it from now on. What is left of a large one is deleted later, in batches, by
        :class:`~app.store.knowledge.stale_chunks.StaleChunks`.

        Raises:
            NotFound: it is missing, or the user may not see it.
            NotAllowed: the user may not edit its collection.
        """

        def work(session: Session) -> None:
            used_document(session, user_id, document_id)
            hold_collection(session, document_id)
            document = used_document(session, user_id, document_id, lock=True)
            _require_editor(session, user_id, document.collection_id)
            details = {"collection": document.collection_id, "name": document.name}
            hide_documents(session, document.collection_id, document_id)
            if delete_some_chunks(session, [document]):
                delete_some_documents(session, [document])
            add_event(session, user_id, AuditAction.DOCUMENT_REMOVED, document_id, **details)

        await self._database.write(work)

    async def chunks(
        self,
        user_id: str,
        document_id: str,
        *,
        version: int | None = None,
        cursor: int = 0,
        limit: int = PAGE_CHUNKS,
    ) -> Page[ChunkView]:
        """A page of a document's chunks, in order. Only the version that is searched has chunks.

        Args:
            cursor: the ordinal of the page's first chunk.

        Raises:
            NotFound: the document or the version is missing, or the user may not see it.
        """

        def work(session: Session) -> Page[ChunkView]:
            document = used_document(session, user_id, document_id)
            wanted = document.version if version is None else version
            if wanted is None:  # not read yet
                return Page((), None)
            _version_text(session, document_id, wanted, 0, 0)
            rows = session.execute(
                select(Chunk, text_between(Chunk.start, Chunk.end))
                .join(
                    DocumentVersion,
                    (DocumentVersion.document_id == Chunk.document_id) & (DocumentVersion.version == Chunk.version),
                )
                .where(Chunk.document_id == document_id, Chunk.version == wanted, Chunk.ordinal >= cursor)
                .order_by(Chunk.ordinal)
                .limit(limit + 1)
            ).all()
            found = [
                ChunkView(
                    ordinal=row.ordinal,
                    heading=row.heading,
                    text=words,
                    start=row.start,
                    end=row.end,
                    tokens=row.tokens,
                )
                for row, words in rows
            ]
            return Page(tuple(found[:limit]), str(found[limit].ordinal) if len(found) > limit else None)

        return await self._database.read(work)

    async def text(
        self, user_id: str, document_id: str, *, version: int | None = None, start: int = 0, end: int | None = None
    ) -> TextSpan:
        """A part of a version's text; also of an old version's, which citations may point into.

        Raises:
            NotFound: the document or the version is missing, has not been read, or the user may not see it.
        """

        def work(session: Session) -> TextSpan:
            document = used_document(session, user_id, document_id)
            wanted = document.version if version is None else version
            if wanted is None:
                raise NotFound("This document has not been read yet.")
            return _version_text(session, document_id, wanted, start, end)

        return await self._database.read(work)

    def _require_room(self, session: Session, collection_id: str, replaced: Document | None, size: int) -> None:
        documents, stored = session.execute(
            select(func.count(Document.id.distinct()), func.coalesce(func.sum(DocumentVersion.size), 0))
            .outerjoin(DocumentVersion, DocumentVersion.document_id == Document.id)
            .where(Document.collection_id == collection_id, ~Document.removed)
        ).one()
        limits = self._limits
        if replaced is None and limits.max_documents is not None and documents >= limits.max_documents:
            raise LimitReached(
                f"This collection has {limits.max_documents} documents, and may have no more. Remove some first."
            )
        if limits.max_bytes is not None and stored + size > limits.max_bytes:
            raise LimitReached(
                f"This collection may take {limits.max_bytes // 2**20} MiB, old versions included, and the file does "
                "not fit. Remove some documents first."
            )


def _require_editor(session: Session, user_id: str, collection_id: str) -> None:
    if not can_edit(session, user_id, collection_id):
        used_collection(session, user_id, collection_id)  # it may have been deleted meanwhile
        raise NotAllowed("You may read this collection, but not change it. Ask an admin for the right to edit it.")


def _documents(user_id: str) -> Select[tuple[Document, int, int]]:
    """The documents that the user may see, each with its number of chunks and its size."""
    chunks = (
        select(func.count())
        .select_from(Chunk)
        .where(Chunk.document_id == Document.id, Chunk.version == Document.version)
        .scalar_subquery()
    )
    size = (
        select(DocumentVersion.size)
        .where(DocumentVersion.document_id == Document.id, DocumentVersion.version == Document.newest)
        .scalar_subquery()
    )
    return (
        select(Document, chunks, func.coalesce(size, 0))
        .join(Collection, Collection.id == Document.collection_id)
        .where(may_use(user_id), ~Document.removed)
    )


def _view(row: Row[tuple[Document, int, int]]) -> DocumentView:
    document, chunks, size = row
    return DocumentView(
        id=document.id,
        collection=document.collection_id,
        name=document.name,
        title=document.title,
        kind=document.kind,
        version=document.version,
        newest=document.newest,
        state=DocumentState(document.state),
        error=document.error,
        progress=document.progress,
        chunks=chunks,
        bytes=size,
        created_at=document.created_at,
        updated_at=document.updated_at,
    )


def _version_text(session: Session, document_id: str, version: int, start: int, end: int | None) -> TextSpan:
    length = func.length(DocumentVersion.text)
    part = text_between(start, start + length if end is None else max(end, start))
    row = session.execute(
        select(DocumentVersion.title, length.label("length"), part.label("part")).where(
            DocumentVersion.document_id == document_id,
            DocumentVersion.version == version,
            DocumentVersion.text.is_not(None),
        )
    ).one_or_none()
    if row is None:
        raise NotFound(_NO_VERSION)
    return TextSpan(
        document_id=document_id,
        version=version,
        title=row.title,
        text=row.part,
        start=min(start, row.length),
        end=min(start, row.length) + len(row.part),
        length=row.length,
    )
