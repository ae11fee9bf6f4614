"""The files of a collection by name and content, to compare them with files elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.knowledge import DocumentSource, DocumentState
from app.store.db.database import Database
from app.store.db.knowledge_models import Document, DocumentVersion
from app.store.knowledge.access import used_collection


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A document's newest version."""

    document_id: str
    name: str
    content_hash: str  #: SHA-256 of the file, in hexadecimal digits
    source: DocumentSource
    state: DocumentState
    error: str | None


class StoredFiles:
    """Lists what a collection holds. Every method takes the user, and acts within their rights."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, user_id: str, collection_id: str) -> dict[str, StoredFile]:
        """The files by name.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
        """

        def work(session: Session) -> dict[str, StoredFile]:
            used_collection(session, user_id, collection_id)
            rows = session.execute(
                select(
                    Document.id,
                    Document.name,
                    Document.source,
                    Document.state,
                    Document.error,
                    DocumentVersion.content_hash,
                )
                .join(
                    DocumentVersion,
                    (DocumentVersion.document_id == Document.id) & (DocumentVersion.version == Document.newest),
                )
                .where(Document.collection_id == collection_id, ~Document.removed)
                .order_by(Document.name)
            )
            return {
                row.name: StoredFile(
                    document_id=row.id,
                    name=row.name,
                    content_hash=row.content_hash,
                    source=DocumentSource(row.source),
                    state=DocumentState(row.state),
                    error=row.error,
                )
                for row in rows
            }

        return await self._database.read(work)

    async def count_unread(self, user_id: str, collection_id: str) -> int:
        """How many documents wait or are being read.

        Raises:
            NotFound: as :meth:`all`.
        """

        def work(session: Session) -> int:
            used_collection(session, user_id, collection_id)
            unread = Document.state.in_((DocumentState.WAITING.value, DocumentState.READING.value))
            query = select(func.count()).select_from(Document).where(Document.collection_id == collection_id, unread)
            return session.scalar(query) or 0

        return await self._database.read(work)
