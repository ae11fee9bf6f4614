"""Search of the knowledge base, as the chat, the page and other programs use it."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.knowledge import Passage, SearchWay
from app.errors import InvalidInput, NotSupported
from app.store.chat.search_queue import SearchQueue
from app.store.knowledge.search import ChunkSearch

MAX_PASSAGES = 50
MAX_QUERY_CHARS = 2000


class KnowledgeSearch:
    """Finds passages among the collections that a user may use."""

    def __init__(self, chunks: ChunkSearch) -> None:
        self._chunks = chunks
        self._queue = SearchQueue()

    async def search(
        self,
        user_id: str,
        query: str,
        *,
        collections: Sequence[str] | None,
        limit: int,
        way: SearchWay = SearchWay.TEXT,
    ) -> list[Passage]:
        """The passages that match best, best first.

        Args:
            collections: None is all that the user may use.
            limit: 1 to ``MAX_PASSAGES``.

        Raises:
            NotFound: one of the collections is missing, or the user may not use it.
            InvalidInput: the query is too long, or the limit out of range.
            NotSupported: there is no encoder, which this way of searching needs.
            TooManyRequests: too many of the user's searches are waiting already.
        """
        if len(query) > MAX_QUERY_CHARS:
            raise InvalidInput(f"A search has at most {MAX_QUERY_CHARS} characters.")
        if not 1 <= limit <= MAX_PASSAGES:
            raise InvalidInput(f"The limit must be from 1 to {MAX_PASSAGES}.")
        if way is SearchWay.DENSE:
            raise NotSupported("This server has no encoder, so it searches by words only. Use way=text.")
        async with self._queue.slot(user_id):
            return await self._chunks.search(user_id, query, collections=collections, limit=limit)
