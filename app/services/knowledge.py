"""The knowledge base's services."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from app.domain.storage import MIB
from app.errors import StartupError, TooLarge
from app.knowledge.articles import Publishing
from app.knowledge.chat_files import ChatFiles
from app.knowledge.dense_search import DenseSearch, index_in
from app.knowledge.folder_sync import FolderSync
from app.knowledge.gaps import Gaps
from app.knowledge.hybrid_search import HybridSearch
from app.knowledge.ingest import Ingest
from app.knowledge.reranking import Reranker
from app.knowledge.rewriting import QuestionRewriter
from app.knowledge.search import KnowledgeSearch
from app.knowledge.synonyms import read_thesaurus
from app.models.folders import GUIDE
from app.settings import AppSettings
from app.store.db.database import Database
from app.store.knowledge.articles import Articles
from app.store.knowledge.chunk_vectors import ChunkVectors
from app.store.knowledge.collections import Collections
from app.store.knowledge.concepts import Thesaurus
from app.store.knowledge.documents import Documents
from app.store.knowledge.gaps import GapRecords
from app.store.knowledge.limits import KnowledgeLimits
from app.store.knowledge.marked_questions import MarkedQuestions
from app.store.knowledge.reading import ReadingQueue
from app.store.knowledge.search import ChunkSearch
from app.store.knowledge.source_rights import SourceRights
from app.store.knowledge.stored_files import StoredFiles
from app.templates.files import PROMPTS, read_knowledge_prompt, read_sources_prompt
from app.turns.sources import Sources
from engine import ChatEngine, ReplyInspector

SYNONYMS = PROMPTS / "knowledge" / "synonyms.yaml"
TOKENIZER = GUIDE / "tokenizer.json"
"""Counts the tokens of chunks. It is always there, and the process that reads needs no engine."""

CANNOT_RERANK = (
    "Reranking needs a model on this machine: another server does not report how likely a given text is. Leave out "
    "APP_KNOWLEDGE_RERANK and --rerank."
)

_STORED_AT_ONCE = 2


def knowledge_limits(settings: AppSettings) -> KnowledgeLimits:
    """The limits of each collection."""
    return KnowledgeLimits(
        max_documents=settings.knowledge_max_documents or None,
        max_bytes=settings.knowledge_max_mb * MIB or None,
    )


def make_sources(search: KnowledgeSearch, engine: ChatEngine, settings: AppSettings) -> Sources:
    """What finds the sources of replies: the search, with what the settings turn on around it.

    Raises:
        StartupError: a file of ``prompts/knowledge`` cannot be used; or as :func:`make_reranker`.
    """
    return Sources(
        search,
        engine,
        settings,
        read_sources_prompt(),
        reranker=make_reranker(engine) if settings.knowledge_rerank else None,
        rewriter=make_rewriter(engine) if settings.knowledge_rewrite else None,
    )


def make_reranker(engine: ChatEngine) -> Reranker:
    """What sorts the passages of a search by the model.

    Raises:
        StartupError: the engine's model runs on another server, or ``prompts/knowledge/rerank.md`` cannot be used.
    """
    if not isinstance(engine, ReplyInspector):
        raise StartupError(CANNOT_RERANK)
    return read_knowledge_prompt("rerank", partial(Reranker, engine))


def make_rewriter(engine: ChatEngine) -> QuestionRewriter:
    """What makes questions of follow-ups by the model.

    Raises:
        StartupError: ``prompts/knowledge/rewrite.md`` cannot be used.
    """
    return read_knowledge_prompt("rewrite", partial(QuestionRewriter, engine))


def search_thesaurus(settings: AppSettings) -> Thesaurus:
    """The synonyms that come with Deskmate, and the desk's own.

    Raises:
        StartupError: a file cannot be used.
    """
    own = settings.knowledge_synonyms
    return read_thesaurus(SYNONYMS, *([own] if own else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Collections, documents and their search."""

    collections: Collections
    documents: Documents
    search: KnowledgeSearch
    gaps: Gaps
    questions: MarkedQuestions
    articles: Articles
    publishing: Publishing
    dense: DenseSearch
    ingest: Ingest
    folder: FolderSync | None  #: None if no folder is configured
    chat_files: ChatFiles
    max_file_bytes: int
    stored_at_once: asyncio.Semaphore  #: uploads whose whole files are in memory, to be stored

    @classmethod
    def create(cls, database: Database, settings: AppSettings, engine: ChatEngine, owner: str) -> Knowledge:
        """``owner``: names this process in the claims of documents that are being read."""
        dense = DenseSearch(lambda: engine.encoder, ChunkVectors(database), index_in(database))
        documents, max_file_bytes = (
            Documents(database, knowledge_limits(settings)),
            settings.knowledge_max_file_mb * MIB,
        )
        folder = settings.knowledge_dir
        return cls(
            collections=Collections(database),
            documents=documents,
            search=KnowledgeSearch(
                HybridSearch(ChunkSearch(database, search_thesaurus(settings)), dense),
                rights=SourceRights(database),
                bot_replies=settings.bot_replies,
            ),
            articles=(articles := Articles(database)),
            publishing=Publishing(articles, documents),
            questions=MarkedQuestions(database),
            gaps=Gaps(GapRecords(database)),
            dense=dense,
            ingest=Ingest(ReadingQueue(database, owner), TOKENIZER),
            folder=FolderSync(documents, StoredFiles(database), folder, max_file_bytes=max_file_bytes)
            if folder
            else None,
            chat_files=ChatFiles(TOKENIZER),
            max_file_bytes=max_file_bytes,
            stored_at_once=asyncio.Semaphore(_STORED_AT_ONCE),
        )

    def too_large(self) -> TooLarge:
        """The error for a file above the limit."""
        return TooLarge(f"The file is larger than {self.max_file_bytes // MIB} MiB. Nothing was added.")
