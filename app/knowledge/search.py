"""Search of the knowledge base, as the chat, the page and other programs use it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.domain.knowledge import MAX_QUERY_CHARS, Passage, SearchWay
from app.errors import InvalidInput
from app.knowledge.hybrid_search import HybridSearch
from app.store.chat.search_queue import SearchQueue
from app.store.knowledge.source_rights import SourceRights

MAX_PASSAGES = 50


class KnowledgeSearch:
    """Finds passages among the collections that a user may use.

    Args:
        rights: to the documents of passages that were found before.
        bot_replies: how many replies of the bot may wait for a search, all as one user, the inbox's account.
    """

    def __init__(self, chunks: HybridSearch, rights: SourceRights, bot_replies: int = 0) -> None:
        self._chunks = chunks
        self._rights = rights
        self._queue = SearchQueue(min_waiting=bot_replies)

    async def search(
        self,
        user_id: str,
        query: str,
        *,
        collections: Sequence[str] | None,
        limit: int,
        way: SearchWay = SearchWay.FUSED,
    ) -> list[Passage]:
        """The passages that match best, best first.

        Args:
            collections: None is all that the user may use.
            limit: 1 to ``MAX_PASSAGES``.
            way: without an encoder, the default finds what the words find.

        Raises:
            NotFound: one of the collections is missing, or the user may not use it.
            InvalidInput: the query is too long, or the limit out of range.
            NotSupported: the way is dense, and there is no encoder.
            EngineUnavailable: the way is dense, and the encoder cannot be used now.
            TooManyRequests: too many of the user's searches are waiting already.
        """
        if len(query) > MAX_QUERY_CHARS:
            raise InvalidInput(f"A search has at most {MAX_QUERY_CHARS} characters.")
        if not 1 <= limit <= MAX_PASSAGES:
            raise InvalidInput(f"The limit must be from 1 to {MAX_PASSAGES}.")
        async with self._queue.slot(user_id):
            return await self._chunks.search(user_id, query, collections=collections, limit=limit, way=way)

    async def usable_documents(self, user_id: str, document_ids: Collection[str]) -> set[str]:
        """Returns those of the documents that exist, and that the user may use."""
        return await self._rights.usable(user_id, document_ids)

    async def closed_documents(self, user_id: str, document_ids: Collection[str]) -> set[str]:
        """Returns those of the documents that exist, and that the user may not use."""
        return await self._rights.closed(user_id, document_ids)
