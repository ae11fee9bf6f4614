"""Search by meaning: keeps the chunks' vectors and an index of them up to date, and finds chunks near a query.

Without an encoder nothing here does anything, and full text finds what there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Protocol

import numpy as np

from app.domain.knowledge import ChunkText, StoredVectors
from app.errors import EngineUnavailable, StorageUnavailable
from app.knowledge.dense_index import DenseIndex, MemoryIndex, products
from app.knowledge.pgvector_index import MAX_DIMENSIONS, PgvectorIndex, has_pgvector
from app.knowledge.vectors import (
    ChunkVector,
    ScoredChunk,
    Vector,
    from_bytes,
    to_bytes,
    unit,
    windows_of_chunks,
    windows_to_bytes,
)
from app.knowledge.windows import windows_of
from app.store.db.database import Database
from engine import Encoder, EncoderInfo, EngineError, EngineStoppedError, TextRole

_log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How soon a change of the chunks, by this server or another, reaches the index."""
ENCODED_AT_ONCE = 64
"""Chunks whose vectors are saved in one transaction; those of a killed server's last one are encoded again."""
LOADED_AT_ONCE = 2000
CANDIDATES = 50
"""Chunks of the index whose windows are compared with a query."""
MAX_ENCODING_SECONDS = 30.0
"""How long chunks are encoded before the index is compared with the database again."""


class VectorRecords(Protocol):
    """The vectors in the database. Searchable chunks are those of the documents' current versions."""

    async def revision(self) -> str:
        """Returns a text that changes whenever a searchable chunk, its collection or its vector does. Must be cheap."""
        ...

    async def unencoded(self, fingerprint: str, limit: int, after: str = "") -> Sequence[ChunkText]:
        """Returns searchable chunks that lack vectors of this encoder, by their ids, those behind ``after``."""
        ...

    async def save(self, fingerprint: str, vectors: Mapping[str, StoredVectors]) -> None:
        """Stores vectors by chunk id. Chunks that are gone meanwhile are left out."""
        ...

    async def encoded(self, fingerprint: str) -> Mapping[str, str]:
        """Returns the collection of each searchable chunk that has a vector of this encoder, by the chunk's id."""
        ...

    async def vectors(self, fingerprint: str, chunk_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Returns stored vectors by chunk id, without those that are gone meanwhile."""
        ...

    async def windows(self, fingerprint: str, chunk_ids: Collection[str]) -> Mapping[str, bytes]:
        """Returns the stored vectors of windows by chunk id, without chunks that have none of this encoder."""
        ...


OpenIndex = Callable[[EncoderInfo], Awaitable[DenseIndex]]


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """The chunks that the index has found for a query."""

    query: Vector
    fingerprint: str  #: of the encoder
    scores: Mapping[str, float]  #: cosines by the chunks' ids


def index_in(database: Database) -> OpenIndex:
    """Returns what opens an index: in PostgreSQL where it has pgvector, else in memory."""

    async def open_index(info: EncoderInfo) -> DenseIndex:
        if info.dimensions <= MAX_DIMENSIONS and await has_pgvector(database):
            return await PgvectorIndex.open(database, info.fingerprint, info.dimensions)
        return MemoryIndex(info.dimensions)

    return open_index


class DenseSearch:
    """Encodes chunks in the background, and searches them by meaning.

    Args:
        encoder: returns the encoder; None without one.
        open_index: makes the index of an encoder's vectors.
    """

    def __init__(self, encoder: Callable[[], Encoder | None], records: VectorRecords, open_index: OpenIndex) -> None:
        self._encoder = encoder
        self._records = records
        self._open_index = open_index
        self._index: tuple[EncoderInfo, DenseIndex] | None = None
        self._revision: str | None = None  #: that the index shows; None: unknown

    @property
    def is_available(self) -> bool:
        """Whether an encoder is configured."""
        return self._encoder() is not None

    async def search(self, query: str, *, collections: Collection[str], limit: int) -> list[ScoredChunk]:
        """Returns the chunks that are nearest in meaning, best first; none without an encoder.

        The index finds candidates by their vectors, and each counts by the window that is nearest.

        Args:
            collections: those that the user may use: the caller checks that.

        Raises:
            EngineUnavailable: the encoder cannot encode the query now.
        """
        nearest = await self.nearest(query, collections=collections, limit=limit)
        if nearest is None:
            return []
        scores = await self.score(nearest)
        return sorted((ScoredChunk(id, score) for id, score in scores.items()), key=lambda one: -one.score)[:limit]

    async def nearest(self, query: str, *, collections: Collection[str], limit: int) -> Nearest | None:
        """Returns candidates, at least as many as the limit; None without an encoder. Raises as :meth:`search`."""
        encoder = self._encoder()
        if encoder is None or self._index is None:
            return None
        info, index = self._index
        try:
            vectors = (await encoder.embed([query], role=TextRole.QUERY)).vectors
        except EngineError as error:
            raise EngineUnavailable(str(error)) from error
        if vectors.shape[1] != info.dimensions:  # another encoder, whose index is not open yet
            return None
        found = await index.search(vectors[0], collections=collections, limit=max(limit, CANDIDATES))
        return Nearest(unit(vectors[0]), info.fingerprint, {one.chunk_id: one.score for one in found})

    async def score(self, nearest: Nearest, also: Collection[str] = ()) -> dict[str, float]:
        """Returns the cosines of the candidates by their nearest windows, and of other chunks, by the chunks' ids."""
        windows = await self._records.windows(nearest.fingerprint, nearest.scores.keys() | set(also))
        return {**nearest.scores, **await asyncio.to_thread(_nearest_windows, nearest.query, windows)}

    async def run(self) -> None:
        """Encodes new chunks and follows all changes, until it is cancelled."""
        problem = ""
        while True:
            try:
                await self.catch_up()
                problem = ""
            except EngineStoppedError as error:  # such as while the encoder is loading
                _log.debug("chunks are not encoded now: %s", error)
            except (EngineError, StorageUnavailable) as error:  # tried again in a moment
                if str(error) != problem:
                    _log.warning("chunks are not encoded: %s", error)
                problem = str(error)
            await asyncio.sleep(POLL_SECONDS)

    async def catch_up(self, progress: Callable[[int], None] | None = None) -> bool:
        """Encodes the chunks that have no vector of this encoder, and brings the index up to date.

        Args:
            progress: called with the number of chunks that were encoded and saved since its last call.

        Returns:
            Whether nothing is left; False after ``MAX_ENCODING_SECONDS``: call it again.

        Raises:
            EngineError: the encoder cannot be used now.
            StorageUnavailable: the database cannot be used now.
        """
        encoder = self._encoder()
        if encoder is None:
            return True
        info = await encoder.describe()
        if self._index is None or self._index[0].fingerprint != info.fingerprint:
            self._index = info, await self._open_index(info)
            self._revision = None
        info, index = self._index
        revision = await self._records.revision()
        if revision == self._revision:
            return True
        await self._update_index(info, index)
        ends = monotonic() + MAX_ENCODING_SECONDS
        last = ""
        while waiting := await self._records.unencoded(info.fingerprint, ENCODED_AT_ONCE, last):
            await self._encode(encoder, info, index, waiting)
            if progress is not None:
                progress(len(waiting))
            last = waiting[-1].chunk_id
            if monotonic() > ends:
                return False
        self._revision = revision  # that of before: what has changed since is compared once more
        return True

    async def _encode(
        self, encoder: Encoder, info: EncoderInfo, index: DenseIndex, waiting: Sequence[ChunkText]
    ) -> None:
        texts = [windows_of(one.place, one.text) for one in waiting]
        encoded = await encoder.embed(list(chain(*texts)), role=TextRole.DOCUMENT, background=True)
        ends = np.cumsum([len(one) for one in texts])
        windows = np.split(unit(encoded.vectors), ends[:-1])
        stored = {
            one.chunk_id: StoredVectors(to_bytes(rows.mean(axis=0)), windows_to_bytes(rows))
            for one, rows in zip(waiting, windows, strict=True)
        }
        await self._records.save(info.fingerprint, stored)
        await index.put(
            [ChunkVector(one.chunk_id, one.collection_id, from_bytes(stored[one.chunk_id].vector)) for one in waiting]
        )

    async def _update_index(self, info: EncoderInfo, index: DenseIndex) -> None:
        """Puts into the index what the database has, and takes out the rest."""
        stored, held = await self._records.encoded(info.fingerprint), await index.owners()
        gone, changed = await asyncio.to_thread(_difference, stored, held)
        if gone:
            await index.remove(gone)
        for start in range(0, len(changed), LOADED_AT_ONCE):
            group = changed[start : start + LOADED_AT_ONCE]
            vectors = await self._records.vectors(info.fingerprint, group)
            await index.put([ChunkVector(id, stored[id], from_bytes(vector)) for id, vector in vectors.items()])


def _difference(stored: Mapping[str, str], held: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Returns the chunks that an index must lose, and those that it lacks or has in another collection."""
    return [id for id in held if id not in stored], [id for id, owner in stored.items() if held.get(id) != owner]


def _nearest_windows(query: Vector, stored: Mapping[str, bytes]) -> dict[str, float]:
    """Returns the cosine of the query and the nearest window of each chunk."""
    ids, starts, windows = windows_of_chunks(stored, len(query))
    if not ids:
        return {}
    nearest = np.maximum.reduceat(products(windows, query), starts)
    return dict(zip(ids, nearest.tolist(), strict=True))
