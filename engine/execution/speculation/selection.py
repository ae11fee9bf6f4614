"""Chooses the proposer of draft tokens, as the settings ask for."""

from __future__ import annotations

from engine.execution.attention.selection import select_kernel
from engine.execution.capacity import Capacity
from engine.execution.speculation.draft_model import DraftModel
from engine.execution.speculation.prompt_lookup import PromptLookup
from engine.execution.speculation.proposer import Proposer
from engine.model.loaded_model import LoadedModel
from engine.settings import EngineSettings


def make_proposer(settings: EngineSettings, model: LoadedModel, capacity: Capacity) -> Proposer | None:
    """Returns the proposer of one engine; None if speculation is off.

    Args:
        model: with its draft model, if ``settings`` name one.
        capacity: the model's cache. A draft model has one of its own, with as many blocks.

    Raises:
        ModelLoadError: the draft model cannot run on this cache; the message says why.
    """
    if settings.speculation == "off":
        return None
    if settings.draft_model is None:
        return PromptLookup()
    draft = model.draft
    assert draft is not None, "models are loaded with their draft model"
    kernel, _ = select_kernel(
        settings.attention, draft.needs, draft.device, capacity.block_size, settings.kv_cache_dtype
    )
    return DraftModel(
        draft,
        kernel,
        capacity.layout,
        vocab_size=model.vocab_size,
        num_blocks=capacity.num_blocks,
        kv_cache_dtype=settings.kv_cache_dtype,
        populates_cache=settings.kv_cache_memory is not None,
        block_size=capacity.block_size,
    )
