"""Loads a model for execution: through transformers, and also for the C++ decoder if its logits match."""

from __future__ import annotations

from dataclasses import replace

from engine.execution.attention.hf_attention import register
from engine.execution.native.eligibility import prepare_decoder_weights
from engine.execution.native.parity_check import logits_match
from engine.execution.native.weights import DecoderWeights
from engine.model.load import LoadedModel, load_checkpoint
from engine.model.weights import Progress
from engine.settings import EngineSettings


def load_model(settings: EngineSettings, progress: Progress) -> LoadedModel:
    """Loads the model named in ``settings``.

    Raises:
        ModelLoadError: see :func:`engine.model.load.load_checkpoint`.
    """
    register()
    model = load_checkpoint(settings, progress, prepare_decoder_weights)
    if isinstance(model.decoder, DecoderWeights) and not logits_match(model.decoder, model):
        return replace(model, decoder=None)
    return model
