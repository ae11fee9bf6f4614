"""Encoders: models that turn a text into a vector, so that texts of similar meaning have similar vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from engine.errors import EngineStoppedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TextRole(StrEnum):
    """What a text is for. Some encoders are trained with a different prompt before each."""

    QUERY = "query"
    DOCUMENT = "document"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInfo:
    """What is known of an encoder.

    ``fingerprint``: 16 hexadecimal digits that differ between encoders whose vectors cannot be compared.
    """

    name: str
    dimensions: int
    max_tokens: int | None  #: the rest of a longer text is cut off; None: the server decides
    fingerprint: str
    shorter_dimensions: tuple[int, ...] | None = ()  #: that vectors may be cut to; None: any; empty: no other

    def check_dimensions(self, asked: int | None) -> int:
        """Returns the number of dimensions to send.

        Raises:
            ValueError: the vectors cannot be cut to that number; starts with "dimensions".
        """
        if asked is None or asked == self.dimensions:
            return self.dimensions
        allowed = self.shorter_dimensions
        if allowed is None and 0 < asked < self.dimensions:
            return asked
        if allowed and asked in allowed:
            return asked
        choices = ", ".join(map(str, sorted({*(allowed or ()), self.dimensions})))
        choices = f"1 to {self.dimensions}" if allowed is None else choices
        raise ValueError(f"dimensions must be {choices} for {self.name} (got {asked}).")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """The vectors of some texts.

    ``vectors``: float32, shape (texts, dimensions). ``num_tokens``: those that the encoder has read of each text, its
    prompt and special tokens included. ``truncated``: indices of the texts whose end was cut off.
    """

    vectors: NDArray[np.float32]
    num_tokens: tuple[int, ...]
    truncated: tuple[int, ...] = ()


class Encoder(Protocol):
    """Turns texts into vectors."""

    async def describe(self) -> EncoderInfo:
        """Returns what is known of it; an encoder on a server is tried for that once.

        Raises:
            EngineError: as :meth:`embed`.
        """
        ...

    async def embed(
        self, texts: Sequence[str | Sequence[int]], *, role: TextRole | None = None, background: bool = False
    ) -> Embeddings:
        """Returns the vectors of texts, or of token ids, in their order. Cancelling the task stops the work.

        Args:
            texts: those given as token ids bring their own special tokens, and get no prompt.
            role: chooses the prompt; default: the one that the encoder uses by default, mostly none.
            background: waits while the engine writes replies: for work that no user waits for.

        Raises:
            InvalidRequestError: a text is empty, or a token is not in the vocabulary.
            EngineOverloadedError: too many texts are waiting.
            EngineStoppedError: the encoder is not loaded, or its server does not answer.
            EngineError: the computation failed.
        """
        ...


class UnloadedEncoder:
    """Stands for an encoder that is configured and not loaded: refuses every call.

    Args:
        reason: a sentence that says why; None for a short moment between two states.
    """

    def __init__(self, reason: str | None) -> None:
        self._reason = reason or "The encoder is not loaded. Try again in a moment."

    async def describe(self) -> EncoderInfo:
        raise EngineStoppedError(self._reason)

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],  # noqa: ARG002
        *,
        role: TextRole | None = None,  # noqa: ARG002
        background: bool = False,  # noqa: ARG002
    ) -> Embeddings:
        raise EngineStoppedError(self._reason)
