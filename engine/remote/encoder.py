"""An encoder on the model servers: texts go to their ``/v1/embeddings``."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import httpx

from engine.embeddings import Embeddings, EncoderInfo, TextRole
from engine.errors import EngineError, EngineStoppedError
from engine.remote.error_responses import parse_error_response
from engine.remote.upstreams import Upstream, UpstreamPool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_TEXTS = 64
"""Texts of one request."""


class RemoteEncoder:
    """Implements :class:`engine.embeddings.Encoder` with an embedding model of the servers.

    Args:
        model: its name there.
        pool: returns the servers. Raises :class:`EngineStoppedError` while there are none.
    """

    def __init__(self, model: str, pool: Callable[[], UpstreamPool]) -> None:
        self._model = model
        self._pool = pool
        self._info: EncoderInfo | None = None

    async def describe(self) -> EncoderInfo:
        """See :meth:`engine.embeddings.Encoder.describe`. No server states its dimensions: a vector shows them."""
        if self._info is None:
            await self.embed(["."])
        assert self._info is not None
        return self._info

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        role: TextRole | None = None,
        background: bool = False,  # noqa: ARG002 - the server decides what goes first
    ) -> Embeddings:
        """See :meth:`engine.embeddings.Encoder.embed`. Roles have no effect on servers that know no prompts."""
        import numpy as np

        rows: list[NDArray[np.float32]] = []
        counts: list[int] = []
        for group in _groups(texts):
            vectors, tokens = await self._ask(group, role)
            rows.append(vectors)
            counts.extend(_shares(tokens, len(group)))
        if not rows:
            dimensions = (await self.describe()).dimensions
            return Embeddings(vectors=np.empty((0, dimensions), np.float32), num_tokens=())
        vectors = np.concatenate(rows)
        dimensions = vectors.shape[1]
        if self._info is None or self._info.dimensions != dimensions:
            fingerprint = blake2b(f"{self._model} {dimensions}".encode(), digest_size=8).hexdigest()
            self._info = EncoderInfo(name=self._model, dimensions=dimensions, max_tokens=None, fingerprint=fingerprint)
        return Embeddings(vectors=vectors, num_tokens=tuple(counts))

    async def _ask(
        self, texts: Sequence[str | Sequence[int]], role: TextRole | None
    ) -> tuple[NDArray[np.float32], int]:
        """Returns the vectors of one request, and the tokens that the server has counted."""
        pool = self._pool()
        upstream = pool.choose("", set())
        body: dict[str, Any] = {"model": self._model, "input": list(texts), "encoding_format": "base64"}
        if role is not None and upstream.served is not None and upstream.served.dialect.name == "deskmate":
            body["input_type"] = role.value
        try:
            answer = await pool.client.post(f"{upstream.url}/embeddings", json=body)
        except (httpx.HTTPError, OSError) as error:
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                pool.mark_unreachable(upstream, error)
            raise EngineStoppedError(f"The model server {upstream.label} does not answer. Please try again.") from error
        if answer.status_code != 200:
            raise parse_error_response(answer.status_code, answer.headers, answer.content, server=upstream.label).error
        return _parse(answer, len(texts), upstream)


def _parse(answer: httpx.Response, expected: int, upstream: Upstream) -> tuple[NDArray[np.float32], int]:
    import numpy as np

    try:
        payload = answer.json()
        data = sorted(payload["data"], key=lambda one: one["index"])
        rows = [_vector(one["embedding"]) for one in data]
        vectors: NDArray[np.float32] = np.stack(rows)
        tokens = int(payload.get("usage", {}).get("prompt_tokens") or 0)
        is_whole = len(rows) == expected and vectors.ndim == 2 and vectors.shape[1] > 0
        is_whole = is_whole and bool(np.isfinite(vectors).all())
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        is_whole = False
    if not is_whole:
        raise EngineError(f"The model server {upstream.label} does not return vectors that can be read.")
    return vectors, tokens


def _vector(value: Any) -> NDArray[np.float32]:
    """Reads a vector in either of OpenAI's formats; some servers send floats whatever is asked for."""
    import numpy as np

    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4").astype(np.float32)
    return np.asarray(value, np.float32)


def _groups(texts: Sequence[str | Sequence[int]]) -> list[Sequence[str | Sequence[int]]]:
    """Splits texts into requests. A request has texts or token ids, not both."""
    groups: list[list[str | Sequence[int]]] = []
    for text in texts:
        same_kind = groups and isinstance(groups[-1][0], str) == isinstance(text, str)
        if same_kind and len(groups[-1]) < MAX_TEXTS:
            groups[-1].append(text)
        else:
            groups.append([text])
    return list(groups)


def _shares(total: int, count: int) -> list[int]:
    """Splits the tokens of a request evenly among its texts: servers count only the sum."""
    return [total * (index + 1) // count - total * index // count for index in range(count)]
