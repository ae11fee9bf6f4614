"""Searches by words, by meaning, or by both merged, and leaves out what the user may not see."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from app.domain.knowledge import Passage, SearchWay
from app.errors import EngineUnavailable, NotSupported
from app.knowledge.dense_search import DenseSearch, Nearest
from app.knowledge.fusion import fuse

_log = logging.getLogger(__name__)

CANDIDATES = 50
"""Chunks of each ranking that both score: one that is far down in both can still come first."""
NO_ENCODER = "This server has no encoder, so it searches by words only. Use way=text."


class PassageRecords(Protocol):
    """Passages in the database, with the user's rights in every query."""

    async def search(
        self, user_id: str, query: str, *, collections: Sequence[str] | None, limit: int
    ) -> Sequence[Passage]:
        """Returns the passages that match the words best. Raises as :meth:`usable`."""
        ...

    async def rank(self, user_id: str, query: str, *, collections: Sequence[str] | None) -> Mapping[str, float]:
        """Returns the scores of the chunks that may match, 0 to 1, by the chunks' ids. Raises as :meth:`usable`."""
        ...

    async def usable(self, user_id: str, collections: Sequence[str] | None) -> Sequence[str]:
        """Returns the collections that the user may use, of these or of all.

        Raises:
            NotFound: one of them is missing, or the user may not use it.
        """
        ...

    async def passages(self, user_id: str, scores: Mapping[str, float]) -> Sequence[Passage]:
        """Returns the chunks that the user may see as passages, best first, by the scores of the chunks' ids."""
        ...


class HybridSearch:
    """Finds passages in any way. Without an encoder, merging leaves what the words find."""

    def __init__(self, records: PassageRecords, dense: DenseSearch) -> None:
        self._records = records
        self._dense = dense

    async def search(
        self, user_id: str, query: str, *, collections: Sequence[str] | None, limit: int, way: SearchWay
    ) -> list[Passage]:
        """Returns the passages that match best, best first.

        Raises:
            NotFound: as :meth:`PassageRecords.usable`.
            NotSupported: the way is dense, and there is no encoder.
            EngineUnavailable: the way is dense, and the encoder cannot be used now.
        """
        if way is SearchWay.DENSE and not self._dense.is_available:
            raise NotSupported(NO_ENCODER)
        if way is SearchWay.TEXT or not self._dense.is_available:
            return list(await self._records.search(user_id, query, collections=collections, limit=limit))
        usable = await self._records.usable(user_id, collections)
        if way is SearchWay.DENSE:
            nearest = await self._dense.search(query, collections=usable, limit=limit)
            return list(await self._records.passages(user_id, {one.chunk_id: one.score for one in nearest}))
        by_words, near = await asyncio.gather(
            self._records.rank(user_id, query, collections=collections), self._nearest(query, usable)
        )
        likely = heapq.nlargest(CANDIDATES, by_words, key=lambda id: by_words[id])
        by_meaning = await self._dense.score(near, also=likely) if near else {}
        return list(await self._records.passages(user_id, fuse(by_words, by_meaning, limit=limit)))

    async def _nearest(self, query: str, collections: Sequence[str]) -> Nearest | None:
        """Returns the candidates of a search by meaning; None if there are none, or the encoder cannot be used now."""
        try:
            return await self._dense.nearest(query, collections=collections, limit=CANDIDATES)
        except EngineUnavailable as error:  # words find something without it
            _log.info("searched by words only: %s", error.message)
            return None
