"""A model on this machine, and what its files' headers say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class ModelError(Exception):
    """A model's files cannot be read, fetched or removed. The message is one sentence for users."""


class Source(StrEnum):
    """Where a model was found."""

    BUNDLED = "bundled"  #: in the box
    MODELS_DIR = "models-dir"  #: ``ENGINE_MODELS_DIR``
    HUB_CACHE = "hub-cache"  #: the cache of the Hugging Face Hub's library
    OLLAMA = "ollama"
    LM_STUDIO = "lm-studio"


@dataclass(frozen=True, slots=True)
class Weights:
    """What the headers of a model's files say."""

    format: str  #: such as "BF16", "AWQ 4-bit" or "GGUF Q4_K_M"
    memory_bytes: int  #: of the weights, once loaded
    bytes_per_token: int  #: of the weights that one token of one chat reads
    context_length: int | None  #: tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model on this machine.

    ``target`` is what the engine loads: a folder, a file, or a hub id. Of ``weights`` and ``problem`` one is None.
    """

    name: str
    source: Source
    target: str
    size_bytes: int  #: on disk
    weights: Weights | None = None
    problem: str | None = None  #: why it cannot be loaded, as a sentence
    paths: tuple[Path, ...] = field(default=(), repr=False)  #: what ``remove`` deletes

    @property
    def id(self) -> str:
        """Names the model among all found ones, without telling where it lies."""
        return f"{self.source.value}:{self.name}"
