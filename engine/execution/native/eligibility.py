"""Decides whether the C++ decoder can run a model, and prepares its weights."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import torch

from engine.device.memory import trim_heap
from engine.errors import first_line
from engine.execution.native.build import NotCompiled, is_compiled, load_library
from engine.execution.native.checked import CheckedModel
from engine.execution.native.decoder import max_rows
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.parity_check import check_sample, pack_and_check
from engine.execution.native.parts import check_parts
from engine.execution.native.structure import Structure
from engine.execution.native.weights import DecoderWeights
from engine.model.attention_hook import AttentionNeeds
from engine.model.gguf.source import GgufSource
from engine.model.named_tensors import NamedTensors
from engine.model.position_check import spread_positions
from engine.model.progress import Progress
from engine.model.safetensors_files import SafetensorsTensors
from engine.model.tensors import TensorSource
from engine.scheduling.cache_layout import LayerShape
from engine.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)


class NativeDecoders:
    """Prepares models for the C++ decoder. A :class:`engine.model.load.Decoders`."""

    def __init__(self) -> None:
        #: the tensors of a model whose weights were read from its files as they are, by the model's own names
        self.read_from: NamedTensors | None = None

    def runs_every_step(self, settings: EngineSettings) -> bool:
        try:
            return runs_every_step(settings)
        except NotCompiled:
            return False  # prepare() says so

    def prepare(
        self,
        module: PreTrainedModel,
        tensors: TensorSource,
        layers: tuple[LayerShape, ...],
        needs: AttentionNeeds,
        settings: EngineSettings,
        context_window: int,
        progress: Progress,
    ) -> DecoderWeights | str:
        if not _is_wanted(settings):
            return "the C++ decoder is not to be used"
        number_format = _number_format(tensors, settings, needs.dtype)
        context_window = min(context_window, settings.max_model_len or context_window)
        try:
            if not is_compiled():
                progress("Compiling for this processor", 0.0)
            load_library()
            structure = Structure.of(module, layers, context_window)
            weights = DecoderWeights(tensors, structure, number_format, needs.dtype)
            weights.log_repacked()
            checked = CheckedModel(
                structure, tensors, number_format, needs.dtype, context_window, settings.kv_cache_dtype
            )
            if checked.is_known:
                _pack(weights, progress)
                if checked.matches(weights):
                    log.info("%s runs in C++ (checked at an earlier start)", settings.model)
                    return self._done(weights, tensors)
                weights = DecoderWeights(tensors, structure, number_format, needs.dtype)
            check_parts(module, structure, spread_positions(context_window, module.config.get_text_config()))
            check_sample(module, structure, tensors, number_format, settings.kv_cache_dtype)
            trim_heap()  # the sample's layers, in float32: glibc would keep them while the weights are packed
            error = pack_and_check(module, weights, context_window, lambda done: progress("Loading weights", done))
            log.info("%s runs in C++ (logits differ by %.1e)", settings.model, error)
            self._done(weights, tensors)
            checked.remember(weights)
        except (NotCompiled, UnsupportedModel) as reason:
            return str(reason)
        except OSError as reason:
            return first_line(reason)
        return weights

    def _done(self, weights: DecoderWeights, tensors: TensorSource) -> DecoderWeights:
        weights.seal()
        if isinstance(tensors, NamedTensors) and isinstance(tensors.source, SafetensorsTensors | GgufSource):
            self.read_from = tensors
        return weights


def _pack(weights: DecoderWeights, progress: Progress) -> None:
    for number, group in enumerate(weights.groups, start=1):
        weights.pack(group)
        progress("Loading weights", number / len(weights.groups))


def runs_every_step(settings: EngineSettings) -> bool:
    """Whether all steps of the models that the decoder can run are best run there.

    Raises:
        NotCompiled: the C++ code cannot be compiled here.
    """
    return _is_wanted(settings) and max_rows() == sys.maxsize


def _is_wanted(settings: EngineSettings) -> bool:
    return settings.native and not settings.batch_invariant


def _number_format(tensors: TensorSource, settings: EngineSettings, dtype: torch.dtype) -> str:
    """Returns the format of the linear layers: that of the file, if it has block formats and nothing else is asked."""
    has_blocks = any(tensors.block_format(name) is not None for name in tensors.names())
    if has_blocks and settings.quantization == "none" and dtype is torch.bfloat16:
        return "blocks"
    return str(dtype).removeprefix("torch.") if settings.quantization == "none" else settings.quantization
