"""Loads a model for execution: into the C++ decoder, into transformers' module, or into both."""

from __future__ import annotations

from engine.execution.attention.hf_attention import register
from engine.execution.native.eligibility import NativeDecoders
from engine.model.load import LoadedModel, load_checkpoint
from engine.model.weights import Progress
from engine.settings import EngineSettings


def load_model(settings: EngineSettings, progress: Progress) -> LoadedModel:
    """Loads the model named in ``settings``.

    Raises:
        ModelLoadError: see :func:`engine.model.load.load_checkpoint`.
    """
    register()
    return load_checkpoint(settings, progress, NativeDecoders())
