"""The knowledge base's services."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.storage import MIB
from app.errors import TooLarge
from app.knowledge.search import KnowledgeSearch
from app.settings import AppSettings
from app.store.db.database import Database
from app.store.knowledge.collections import Collections
from app.store.knowledge.documents import Documents
from app.store.knowledge.limits import KnowledgeLimits
from app.store.knowledge.search import ChunkSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Collections, documents and their search."""

    collections: Collections
    documents: Documents
    search: KnowledgeSearch
    max_file_bytes: int

    @classmethod
    def create(cls, database: Database, settings: AppSettings) -> Knowledge:
        limits = KnowledgeLimits(
            max_documents=settings.knowledge_max_documents or None,
            max_bytes=settings.knowledge_max_mb * MIB or None,
        )
        return cls(
            collections=Collections(database),
            documents=Documents(database, limits),
            search=KnowledgeSearch(ChunkSearch(database)),
            max_file_bytes=settings.knowledge_max_file_mb * MIB,
        )

    def too_large(self) -> TooLarge:
        """The error for a file above the limit."""
        return TooLarge(f"The file is larger than {self.max_file_bytes // MIB} MiB. Nothing was added.")
