"""An encoder for tests of the app, without a model: texts that share words have similar vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np

from engine import Embeddings, EncoderInfo, EngineError, TextRole


class FakeEncoder:
    """Implements :class:`engine.Encoder`. A vector counts the words of its text in buckets, to length 1.

    Args:
        dimensions: number of buckets.
    """

    def __init__(self, dimensions: int = 64, *, max_tokens: int = 512) -> None:
        self._max_tokens = max_tokens
        self.info = EncoderInfo(
            name="fake-encoder", dimensions=dimensions, max_tokens=max_tokens, fingerprint="fa4e000000000001"
        )
        self.calls: list[tuple[tuple[str | Sequence[int], ...], TextRole | None, bool]] = []
        self.refuse: EngineError | None = None  #: raised by every call

    def become(self, fingerprint: str) -> None:
        """Counts as another encoder from now on."""
        self.info = replace(self.info, fingerprint=fingerprint)

    async def describe(self) -> EncoderInfo:
        if self.refuse is not None:
            raise self.refuse
        return self.info

    async def embed(
        self, texts: Sequence[str | Sequence[int]], *, role: TextRole | None = None, background: bool = False
    ) -> Embeddings:
        self.calls.append((tuple(texts), role, background))
        if self.refuse is not None:
            raise self.refuse
        words = [re.findall(r"\w+", text.lower()) if isinstance(text, str) else list(map(str, text)) for text in texts]
        vectors = np.zeros((len(texts), self.info.dimensions), np.float32)
        for row, read in zip(vectors, words, strict=True):
            for word in read[: self._max_tokens]:
                row[crc32(word.encode()) % len(row)] += 1
            row /= np.linalg.norm(row) or 1.0
        lengths = [len(read) for read in words]
        return Embeddings(
            vectors=vectors,
            num_tokens=tuple(min(length, self._max_tokens) for length in lengths),
            truncated=tuple(index for index, length in enumerate(lengths) if length > self._max_tokens),
        )
