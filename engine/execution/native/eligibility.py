"""Decides whether the C++ decoder can run a model, and prepares its weights."""

from __future__ import annotations

import logging

from transformers import PreTrainedModel

from engine.device.memory import available_memory
from engine.execution.native.build import NotCompiled, is_compiled, load_library
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.parity_check import check_sample
from engine.execution.native.parts import check_parts
from engine.execution.native.structure import Structure
from engine.execution.native.weights import DecoderWeights
from engine.model.attention_hook import AttentionNeeds
from engine.model.position_check import spread_positions
from engine.model.weights import Progress
from engine.scheduling.cache_layout import LayerShape
from engine.settings import EngineSettings

log = logging.getLogger(__name__)


def prepare_decoder_weights(
    module: PreTrainedModel,
    layers: tuple[LayerShape, ...],
    needs: AttentionNeeds,
    settings: EngineSettings,
    weight_bytes: int,
    context_window: int,
    progress: Progress,
) -> DecoderWeights | None:
    """Returns the weights for the C++ decoder; None if it cannot run the model, or is not to be used."""
    device = next(module.parameters()).device
    if device.type != "cpu" or not settings.native or settings.batch_invariant:
        return None
    number_format = (
        str(needs.dtype).removeprefix("torch.") if settings.quantization == "none" else settings.quantization
    )
    try:
        if needs.sinks:
            raise UnsupportedModel("its attention uses sinks")
        if 2 * weight_bytes > available_memory(device):
            raise UnsupportedModel("its weights would not fit into memory twice")
        if not is_compiled():
            progress("Compiling for this processor", 0.0)
        load_library()
        structure = Structure.of(module, layers)
        check_parts(module, structure, spread_positions(context_window, module.config.get_text_config()))
        check_sample(module, structure)
        return DecoderWeights(module, structure, number_format)
    except (NotCompiled, UnsupportedModel) as reason:
        log.info("every step of %s runs through transformers: %s", settings.model, reason)
        return None
