"""Downloads a model of the hub into its cache, without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.model.progress import Progress


def fetch_model(model: str, revision: str | None, progress: Progress) -> Path:
    """Downloads what the hub's cache lacks of a model, and returns its folder there, or its first GGUF file.

    Args:
        model: hub id; for GGUF files with their quantization, ``org/repo:Q4_K_M``.
        revision: branch, tag or commit; None for the main branch.
        progress: errors that it raises are raised here at once.

    Raises:
        ModelLoadError: the model does not exist, access is denied, or the hub cannot be reached; the disk is full; or
            the model has no safetensors weights.
    """
    from engine.model.hub import fetch_description, fetch_gguf, fetch_weights

    if ":" in model:
        return fetch_gguf(model, revision, progress)
    folder = fetch_description(model, revision, progress)
    fetch_weights(model, folder, progress)
    return folder
