"""Vectors of chunks: as the database stores them, and as an index searches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STORED = np.dtype("<f2")
"""Stored as float16, which keeps the order of near neighbours and takes half the space of float32."""
MIN_LENGTH = 1e-12
_WINDOW_SCALE = 127
"""Windows are stored as int8: they only order candidates, and there are several for each chunk."""

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkVector:
    """The vector of a chunk, as it is put into an index."""

    chunk_id: str
    collection_id: str
    vector: Vector  #: of any length: indexes compare directions


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A chunk that a search has found."""

    chunk_id: str
    score: float  #: cosine of the angle to the query's vector, -1 to 1


def windows_to_bytes(windows: Vector) -> bytes:
    """Returns the vectors of a chunk's windows, a row each, as the database stores them, their lengths made 1."""
    return np.rint(unit(windows) * _WINDOW_SCALE).astype(np.int8).tobytes()


def windows_of_chunks(stored: Mapping[str, bytes], dimensions: int) -> tuple[list[str], NDArray[np.intp], Vector]:
    """Reads the stored vectors of the chunks' windows.

    Returns:
        The chunks' ids, without those that have no vectors of so many dimensions; the first row of each; and the
        vectors of all, a row each.
    """
    usable = {id: windows for id, windows in stored.items() if windows and not len(windows) % dimensions}
    starts = np.cumsum([0, *(len(windows) // dimensions for windows in usable.values())], dtype=np.intp)[:-1]
    rows = np.frombuffer(b"".join(usable.values()), np.int8).reshape(-1, dimensions)
    return list(usable), starts, unit(rows.astype(np.float32))


def to_bytes(vector: Vector) -> bytes:
    """Returns a vector as the database stores it, its length made 1."""
    return unit(vector).astype(STORED).tobytes()


def from_bytes(stored: bytes) -> Vector:
    """Returns a stored vector."""
    return np.frombuffer(stored, STORED).astype(np.float32)


def unit(vectors: Vector) -> Vector:
    """Makes the length of a vector, or of each row of a matrix, 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Vector = (vectors / np.maximum(lengths, MIN_LENGTH)).astype(np.float32)
    return scaled
