"""Indexes of vectors: the nearest chunks of a query among the collections that a user may use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.knowledge.vectors import ChunkVector, ScoredChunk, Vector, unit

BLOCK_ROWS = 8192
"""Vectors of one array. The index grows by arrays: one large one would be copied, and held twice meanwhile."""
_FREE = 0
"""Stands for no collection: the row is unused."""


class DenseIndex(Protocol):
    """Finds chunks by their vectors. All methods may be called while others run."""

    async def put(self, vectors: Sequence[ChunkVector]) -> None:
        """Adds chunks, or replaces their vectors and collections."""
        ...

    async def remove(self, chunk_ids: Collection[str]) -> None:
        """Removes chunks; unknown ids do no harm."""
        ...

    async def owners(self) -> dict[str, str]:
        """Returns the collection of each chunk, by the chunk's id."""
        ...

    async def search(self, query: Vector, *, collections: Collection[str], limit: int) -> list[ScoredChunk]:
        """Returns the chunks of the collections that are nearest to the query, best first.

        Chunks of other collections are left out before the ranking, so they take no place in it.
        """
        ...


class MemoryIndex:
    """Holds every vector once, as float32, and compares all of them with the query: exact.

    Args:
        dimensions: of the vectors. Memory: 4 bytes for each of them and each chunk.
    """

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._lock = threading.Lock()  # guards all fields below: searches run in threads
        self._blocks: list[Vector] = []
        self._owners = np.zeros(0, np.int32)  # the collection's number of each row
        self._numbers: dict[str, int] = {}  # of the collections, from 1
        self._rows: dict[str, int] = {}  # by chunk id
        self._ids: list[str] = []  # by row
        self._free: list[int] = []

    async def put(self, vectors: Sequence[ChunkVector]) -> None:
        """See :class:`DenseIndex`."""
        await asyncio.to_thread(self._put, vectors)

    async def remove(self, chunk_ids: Collection[str]) -> None:
        """See :class:`DenseIndex`."""
        await asyncio.to_thread(self._remove, chunk_ids)

    async def owners(self) -> dict[str, str]:
        """See :class:`DenseIndex`."""
        return await asyncio.to_thread(self._list_owners)

    async def search(self, query: Vector, *, collections: Collection[str], limit: int) -> list[ScoredChunk]:
        """See :class:`DenseIndex`."""
        return await asyncio.to_thread(self._search, query, collections, limit)

    @property
    def num_bytes(self) -> int:
        """Memory of the vectors."""
        return sum(block.nbytes for block in self._blocks)

    def _put(self, vectors: Sequence[ChunkVector]) -> None:
        if not vectors:
            return
        matrix = unit(np.stack([one.vector for one in vectors]))
        if matrix.shape[1] != self._dimensions:
            raise ValueError(f"vectors have {matrix.shape[1]} dimensions, the index has {self._dimensions}")
        with self._lock:
            for one, vector in zip(vectors, matrix, strict=True):
                row = self._rows.get(one.chunk_id)
                if row is None:
                    row = self._new_row(one.chunk_id)
                self._blocks[row // BLOCK_ROWS][row % BLOCK_ROWS] = vector
                self._owners[row] = self._numbers.setdefault(one.collection_id, len(self._numbers) + 1)

    def _new_row(self, chunk_id: str) -> int:
        if not self._free:
            start = len(self._ids)
            self._blocks.append(np.zeros((BLOCK_ROWS, self._dimensions), np.float32))
            self._owners = np.concatenate([self._owners, np.full(BLOCK_ROWS, _FREE, np.int32)])
            self._ids.extend([""] * BLOCK_ROWS)
            self._free.extend(reversed(range(start, start + BLOCK_ROWS)))
        row = self._free.pop()
        self._rows[chunk_id], self._ids[row] = row, chunk_id
        return row

    def _remove(self, chunk_ids: Collection[str]) -> None:
        with self._lock:
            for chunk_id in chunk_ids:
                row = self._rows.pop(chunk_id, None)
                if row is not None:
                    self._owners[row], self._ids[row] = _FREE, ""
                    self._free.append(row)

    def _list_owners(self) -> dict[str, str]:
        with self._lock:
            names = {number: collection_id for collection_id, number in self._numbers.items()}
            return {chunk_id: names[int(self._owners[row])] for chunk_id, row in self._rows.items()}

    def _search(self, query: Vector, collections: Collection[str], limit: int) -> list[ScoredChunk]:
        query = unit(query)
        with self._lock:
            usable = np.zeros(len(self._numbers) + 1, np.bool_)
            usable[[self._numbers[one] for one in collections if one in self._numbers]] = True
            rows = np.flatnonzero(usable[self._owners])
            if limit < 1 or not rows.size:
                return []
            scores = np.concatenate(list(self._scores_of(rows, query)))
            best = np.argpartition(-scores, limit - 1)[:limit] if limit < scores.size else np.arange(scores.size)
            best = best[np.argsort(-scores[best], kind="stable")]
            return [ScoredChunk(self._ids[rows[one]], float(scores[one])) for one in best]

    def _scores_of(self, rows: NDArray[np.intp], query: Vector) -> Iterator[Vector]:
        """Yields the scores of rows in their order. A block of which few rows are asked for is not multiplied whole."""
        bounds = np.searchsorted(rows, np.arange(len(self._blocks) + 1) * BLOCK_ROWS)
        for block, start, end in zip(self._blocks, bounds[:-1], bounds[1:], strict=True):
            if start == end:
                continue
            if end - start == BLOCK_ROWS:
                yield products(block, query)
                continue
            within = rows[start:end] % BLOCK_ROWS
            if len(within) * 4 > BLOCK_ROWS:
                yield products(block, query)[within]
            else:
                yield products(block[within], query)


def products(block: Vector, query: Vector) -> Vector:
    """Returns each row times the query, on one thread.

    ``@`` divides it among OpenBLAS's threads, which wait for one another by spinning: beside other work, 200,000 rows
    took ten times as long, and took that time from the replies.
    """
    found: Vector = np.einsum("ij,j->i", block, query)
    return found
