"""The memory that an encoder takes, from its files. Imports neither PyTorch nor transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.model.folders import find_model
from engine.settings import EngineSettings

FLOAT32_BYTES = 4
_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")
"""Names of the vectors' dimensions in config.json: transformers maps the others to the first."""


@dataclass(frozen=True, slots=True)
class EncoderMemory:
    """Sizes are in bytes."""

    folder: Path
    weights: int
    vectors: int  #: room that is left for ``ENGINE_ENCODER_VECTORS``

    @property
    def total(self) -> int:
        return self.weights + self.vectors


def encoder_memory(settings: EngineSettings) -> EncoderMemory | None:
    """Returns what the encoder will take; None without one, or where its files are not on this machine.

    Raises:
        ModelLoadError: there is no such folder, or it cannot be read.
    """
    if settings.encoder is None or settings.remote_url:
        return None
    try:
        folder = find_model(settings.encoder)
    except ModelLoadError as error:
        raise ModelLoadError(f"ENGINE_ENCODER: {error}") from error
    if isinstance(folder, str) or not folder.is_dir():
        return None
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        dimensions = int(next((config[name] for name in _WIDTHS if name in config), 0))
        weights = weight_bytes(folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelLoadError(f"ENGINE_ENCODER: the folder {folder} cannot be read ({error}).") from error
    return EncoderMemory(folder, weights, vector_bytes(settings, dimensions))


def weight_bytes(folder: Path) -> int:
    """Returns what the weights of a folder take in float32."""
    return sum(_float32_bytes(file) for file in folder.glob("*.safetensors"))


def vector_bytes(settings: EngineSettings, dimensions: int) -> int:
    """Returns the memory that is left free for vectors."""
    return settings.encoder_vectors * dimensions * FLOAT32_BYTES


def _float32_bytes(file: Path) -> int:
    """Reads the shapes in a file's header. Its format: https://github.com/huggingface/safetensors"""
    with file.open("rb") as content:
        header: dict[str, Any] = json.loads(content.read(int.from_bytes(content.read(8), "little")))
    sizes: list[int] = [prod(tensor["shape"]) for key, tensor in header.items() if key != "__metadata__"]
    return FLOAT32_BYTES * sum(sizes)
