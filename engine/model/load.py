"""Loads any causal language model that transformers knows, or says in a sentence why it cannot run here.

Structure, tokenizers and chat templates come from transformers untouched; nothing here names an architecture.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from engine.device.memory import available_memory
from engine.errors import ModelLoadError, first_line
from engine.model.attention_hook import AttentionNeeds, LayerProbe
from engine.model.checkpoint import Checkpoint
from engine.model.filled_module import fill_module
from engine.model.folders import find_model
from engine.model.forwards import FAILURES, stubbed_linears
from engine.model.gguf.checkpoint import open_gguf_checkpoint
from engine.model.hub import fetch_gguf
from engine.model.loaded_model import CompiledDecoder, LoadedModel
from engine.model.memory_fit import advise_for_small_cache, require_memory
from engine.model.named_tensors import ModuleTensors
from engine.model.placement import choose_device, choose_dtype
from engine.model.position_check import check_positions
from engine.model.probe import AttentionCalls, min_cache_window, probe_calls, run_probe_step
from engine.model.progress import Progress
from engine.model.quantization import LinearClasses, choose_linears
from engine.model.quantized import DequantizedSource
from engine.model.quantized.module import check_weights, load_dequantized
from engine.model.replacement import replace_linears
from engine.model.rope import LengthDependentRotary, replace_length_dependent
from engine.model.safetensors_folder import open_folder
from engine.model.served_format import ServedFormat, choose_served_format, smallest_served_format
from engine.model.sizing import count_parameters
from engine.model.skeleton import ModelTensors, build_skeleton
from engine.model.stacked_experts import stack_experts
from engine.model.tensors import TensorSource
from engine.model.weights import copy_weights, load_weights
from engine.scheduling.cache_layout import LayerShape
from engine.settings import EngineSettings

log = logging.getLogger(__name__)


class Decoders(Protocol):
    """Prepares models for compiled code that runs whole steps on a CPU."""

    def runs_every_step(self, settings: EngineSettings) -> bool:
        """Whether all steps of the models that it can run are best run there, so that no module is needed."""

    def prepare(
        self,
        module: PreTrainedModel,
        tensors: TensorSource,
        layers: tuple[LayerShape, ...],
        needs: AttentionNeeds,
        settings: EngineSettings,
        context_window: int,
        progress: Progress,
    ) -> CompiledDecoder | str:
        """Packs a model's weights, checks the result, and returns it, or the reason why the model cannot run there.

        Args:
            module: as transformers made it, before any module is replaced, or a skeleton
                (:mod:`engine.model.skeleton`).
            tensors: of the model, by the names of the module's parameters.
        """


def load_checkpoint(settings: EngineSettings, progress: Progress, decoders: Decoders | None = None) -> LoadedModel:
    """Loads the model named in ``settings``. The attention function must be registered with transformers.

    If a decoder can run every step of the model, its weights go straight into it. Otherwise transformers loads them
    into a module; a decoder that can run some steps has a copy of them.

    Raises:
        ModelLoadError: the folder is missing or incomplete, the weights are pickled, the model needs remote code, or
            its architecture has no attention hook or keeps other state than keys and values, or it is larger than the
            free memory.
    """
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    if settings.quantization != "auto":
        choose_linears(settings.quantization, device, dtype)  # what cannot run is refused before anything is downloaded
    checkpoint = open_checkpoint(settings, progress)
    if isinstance(checkpoint.tensors, DequantizedSource):
        check_weights(checkpoint.config, checkpoint.tensors)
    served = choose_served_format(settings, checkpoint, device, dtype)
    require_memory(settings, checkpoint, served, device, dtype)
    settings = settings.model_copy(update={"quantization": served.quantization})
    linear_classes = choose_linears(settings.quantization, device, dtype)
    if device.type != "cpu":
        decoders = None
    if decoders is not None and decoders.runs_every_step(settings):
        loaded = _load_into_decoder(checkpoint, decoders, settings, served, dtype, progress)
        if isinstance(loaded, LoadedModel):
            return loaded
        log.info("%s is loaded into a module of transformers: %s", settings.model, loaded)
    module = _load_module(checkpoint, settings.model, dtype, device, progress)
    return _with_module(checkpoint, module, linear_classes, decoders, settings, served, device, progress)


def _load_into_decoder(
    checkpoint: Checkpoint,
    decoders: Decoders,
    settings: EngineSettings,
    served: ServedFormat,
    dtype: torch.dtype,
    progress: Progress,
) -> LoadedModel | str:
    """Reads a model's weights from its files into the decoder; returns the reason if that is not possible."""
    if checkpoint.tensors is None:
        return "only transformers can read its files"
    device, source = torch.device("cpu"), checkpoint.tensors
    if served.quantization != "none" and settings.dtype == "auto":
        dtype = torch.bfloat16  # beside it, not beside float32, the decoder computes 8 and 4 bits
    if isinstance(source, DequantizedSource) and served.in_blocks and source.in_blocks().has_blocks():
        checkpoint = replace(checkpoint, file_format=source.format.label)
        source, dtype = source.in_blocks(), torch.bfloat16
        served = replace(served, quantization="none")  # the blocks' own
        settings = settings.model_copy(update={"quantization": "none"})
    elif isinstance(source, DequantizedSource):
        source = source.in_dtype(dtype)
    elif checkpoint.file_format is not None and settings.dtype == "auto":
        dtype = torch.bfloat16  # what the decoder computes block formats with
    try:
        skeleton = build_skeleton(checkpoint.config, dtype)
        tensors = ModelTensors(stack_experts(source), skeleton, settings.model)
        sizes = _Sizes.of(skeleton)
        tensors.fill(skeleton, dtype)
        with stubbed_linears(skeleton):
            calls = probe_calls(skeleton, checkpoint.config, device, settings.model)
    except (ModelLoadError, *FAILURES, ImportError) as error:  # transformers may read it all the same, or says why not
        return first_line(error)
    if calls.layer_per_call:
        return "its attention is called several times in a layer"
    context_window = _usable_context(checkpoint.config, calls)
    decoder = decoders.prepare(skeleton, tensors, calls.layers, calls.needs, settings, context_window, progress)
    if isinstance(decoder, str):
        return decoder
    return _loaded_model(checkpoint, served, sizes, calls, device, decoder=decoder)


def _with_module(
    checkpoint: Checkpoint,
    module: PreTrainedModel,
    linear_classes: LinearClasses,
    decoders: Decoders | None,
    settings: EngineSettings,
    served: ServedFormat,
    device: torch.device,
    progress: Progress,
) -> LoadedModel:
    """Checks a model that transformers has loaded, and makes it fast."""
    calls = probe_calls(module, checkpoint.config, device, settings.model)
    context_window = _usable_context(checkpoint.config, calls)
    sizes = _Sizes.of(module)
    decoder: CompiledDecoder | str = "no decoder is used"
    if decoders is not None and not calls.layer_per_call:
        if 2 * sizes.weight_bytes > available_memory(device):
            decoder = "its weights would not fit into memory twice"
        else:
            tensors = ModuleTensors(module)
            decoder = decoders.prepare(module, tensors, calls.layers, calls.needs, settings, context_window, progress)
        if isinstance(decoder, str):
            log.info("every step of %s runs through transformers: %s", settings.model, decoder)
    compiled = None if isinstance(decoder, str) else decoder
    if decoders is not None and compiled is not None and decoders.runs_every_step(settings):
        return _loaded_model(checkpoint, served, sizes, calls, device, decoder=compiled)
    rotary = replace_length_dependent(module, settings.model)
    check_positions(module, rotary, context_window, settings.model)
    if rotary is not None:
        rotary.lengths = torch.tensor([1, 2], device=device)  # for the probe steps below
    loaded = _loaded_model(checkpoint, served, sizes, calls, device, decoder=compiled, module=module, rotary=rotary)
    if linear_classes.inner:
        replaced = replace_linears(module, linear_classes, lambda: run_probe_step(module, device, LayerProbe()))
        if settings.quantization != "none":
            if not replaced:
                raise ModelLoadError(
                    f"{settings.model} has no linear layers that could be quantized. Use quantization=none."
                )
            kept = ", ".join(f"{count} in {bits}" for bits, count in replaced.items())
            log.info("linear layers of %s: %s", settings.model, kept)
        _check_replaced(module, device, settings)
    if device.type == "cpu":
        copy_weights(module)
    return loaded


@dataclass(frozen=True, slots=True)
class _Sizes:
    num_parameters: int
    weight_bytes: int  #: before any quantization

    @classmethod
    def of(cls, module: nn.Module) -> _Sizes:
        """Counts the parameters of a module, with data or without, as transformers made it."""
        parameters = list(module.parameters())
        return cls(sum(one.numel() for one in parameters), sum(one.nbytes for one in parameters))


def _loaded_model(
    checkpoint: Checkpoint,
    served: ServedFormat,
    sizes: _Sizes,
    calls: AttentionCalls,
    device: torch.device,
    *,
    decoder: CompiledDecoder | None,
    module: nn.Module | None = None,
    rotary: LengthDependentRotary | None = None,
) -> LoadedModel:
    vocab_size = int(checkpoint.config.get_text_config().vocab_size)
    return LoadedModel(
        name=checkpoint.name,
        module=module,
        tokenizer=checkpoint.tokenizer,
        generation_config=checkpoint.generation_config,
        device=device,
        dtype=calls.needs.dtype,
        layers=calls.layers,
        layer_per_call=calls.layer_per_call,
        needs=calls.needs,
        max_position_embeddings=_usable_context(checkpoint.config, calls),
        vocab_size=vocab_size,
        eos_token_ids=_eos_token_ids(checkpoint.generation_config, checkpoint.tokenizer, vocab_size),
        rotary=rotary,
        num_parameters=sizes.num_parameters,
        weight_bytes=sizes.weight_bytes,
        quantization=served.quantization,
        quantization_reason=served.reason,
        has_unused_adapter=checkpoint.has_unused_adapter,
        file_format=checkpoint.file_format,
        decoder=decoder,
    )


def _load_module(
    checkpoint: Checkpoint, name: str, dtype: torch.dtype, device: torch.device, progress: Progress
) -> Any:
    """Returns the model with its weights, as transformers makes it."""
    if isinstance(checkpoint.tensors, DequantizedSource):
        module = load_dequantized(checkpoint.config, checkpoint.tensors, name, dtype, device, progress)
        module.generation_config = checkpoint.generation_config
        return module
    if checkpoint.folder is None:
        return fill_module(checkpoint, name, dtype, device, progress)
    return load_weights(checkpoint.folder, name, dtype, device, progress)


def _check_replaced(module: nn.Module, device: torch.device, settings: EngineSettings) -> None:
    """Refuses a model that no longer runs: its code may read the weight of a layer that it did not read before."""
    try:
        run_probe_step(module, device, LayerProbe())
    except (AttributeError, TypeError, RuntimeError) as error:
        other = "dtype=float32" if settings.quantization == "none" else "quantization=none and dtype=float32"
        raise ModelLoadError(
            f"{settings.model} cannot run with its linear layers replaced ({first_line(error)}). Use {other}."
        ) from error


def prepare_model(settings: EngineSettings, progress: Progress, released: int = 0) -> int:
    """Does what can be done before a model is loaded: refuses models that cannot run, and downloads missing files.

    Args:
        released: bytes of memory that are free once the loaded model is unloaded.

    Returns:
        Bytes that the weights will take in memory.

    Raises:
        ModelLoadError: as :func:`load_checkpoint`, except for errors that only show when the weights are loaded.
    """
    checkpoint = open_checkpoint(settings, progress)
    device = choose_device(settings.device)
    wanted = choose_dtype(settings.dtype, device)
    require_memory(
        settings, checkpoint, smallest_served_format(settings, checkpoint, device, wanted), device, wanted, released
    )
    if checkpoint.num_parameters is not None:
        is_packed = settings.native and settings.dtype == "auto" and device.type == "cpu"
        return checkpoint.weight_bytes if is_packed else checkpoint.num_parameters * wanted.itemsize
    if checkpoint.quantized is not None:
        return count_parameters(checkpoint.config, settings.model) * wanted.itemsize  # dense while it loads
    stored: torch.dtype = getattr(checkpoint.config, "dtype", None) or torch.float32
    return checkpoint.weight_bytes * wanted.itemsize // stored.itemsize


def advise_memory_limit(settings: EngineSettings, progress: Progress) -> str | None:
    """Returns the sentence that names a better memory limit for a container in which the model fits, but few tokens.

    None outside a container, and if its limit is enough.

    Raises:
        ModelLoadError: as :func:`prepare_model`.
    """
    checkpoint = open_checkpoint(settings, progress)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    served = smallest_served_format(settings, checkpoint, device, dtype)
    return advise_for_small_cache(settings, checkpoint, served, device, dtype)


def open_checkpoint(settings: EngineSettings, progress: Progress) -> Checkpoint:
    """Opens the files of the model named in ``settings``, of whatever kind they are; downloads missing ones.

    Raises:
        ModelLoadError: they are missing, incomplete or damaged, or the model cannot run here.
    """
    source = find_model(settings.model)
    if isinstance(source, str) and ":" in source:
        return open_gguf_checkpoint(fetch_gguf(source, settings.revision, progress), settings, progress, name=source)
    if isinstance(source, Path) and source.is_file():
        return open_gguf_checkpoint(source, settings, progress)
    return open_folder(source, settings, progress)


def _usable_context(config: Any, calls: AttentionCalls) -> int:
    """Returns the tokens that the model can read: its context window, or less if its cache keeps fewer."""
    text_config = config.get_text_config()
    return int(min(_context_window(text_config), min_cache_window(text_config, calls)))


def _context_window(text_config: Any) -> int:
    """Returns the model's longest sequence in tokens, extended if its rotary embedding is scaled."""
    window = int(getattr(text_config, "max_position_embeddings", None) or 4096)
    rope = getattr(text_config, "rope_parameters", None) or {}
    match rope.get("rope_type"):
        case "dynamic":
            return int(window * rope["factor"])
        case "yarn":
            return max(window, int(rope.get("original_max_position_embeddings", 0) * rope["factor"]))
    return window


def _eos_token_ids(generation_config: GenerationConfig, tokenizer: Any, vocab_size: int) -> frozenset[int]:
    """Returns the tokens that end a reply: those in the model's generation_config, otherwise the tokenizer's."""
    stated = generation_config.eos_token_id
    if stated is None:
        stated = tokenizer.eos_token_id
    if stated is None:
        return frozenset()
    ids = [stated] if isinstance(stated, int) else stated
    return frozenset(id_ for id_ in ids if id_ < vocab_size)
