"""Loads any causal language model through transformers, or says in a sentence why it cannot run here.

Weights, tokenizers and chat templates come from transformers untouched; nothing here names an architecture.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from engine.errors import ModelLoadError, first_line
from engine.model.attention_hook import AttentionNeeds, LayerProbe
from engine.model.checkpoint import Checkpoint
from engine.model.filled_module import fill_module
from engine.model.folders import find_model
from engine.model.gguf.checkpoint import open_gguf_checkpoint
from engine.model.position_check import check_positions
from engine.model.probe import min_cache_window, probe_calls, run_probe_step
from engine.model.quantization import choose_linears
from engine.model.quantized import DequantizedSource
from engine.model.quantized.module import load_dequantized
from engine.model.replacement import replace_linears
from engine.model.rope import LengthDependentRotary, replace_length_dependent
from engine.model.safetensors_folder import open_folder
from engine.model.served_format import choose_served_format
from engine.model.sizing import count_parameters
from engine.model.weights import Progress, copy_weights, load_weights
from engine.scheduling.cache_layout import LayerShape
from engine.settings import EngineSettings

log = logging.getLogger(__name__)


class CompiledDecoder(Protocol):
    """A second copy of the weights, in the layout of compiled code that runs whole steps."""

    @property
    def number_format(self) -> str:
        """Number format of the weights: ``float32``, ``bfloat16``, ``int8`` or ``int4``."""


class CompileDecoder(Protocol):
    """Makes a :class:`CompiledDecoder` from a model as transformers loaded it, before any module is replaced."""

    def __call__(
        self,
        module: PreTrainedModel,
        layers: tuple[LayerShape, ...],
        needs: AttentionNeeds,
        settings: EngineSettings,
        weight_bytes: int,
        context_window: int,
        progress: Progress,
    ) -> CompiledDecoder | None:
        """Returns None if no compiled code can run the model, or none is wanted."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run in the engine, with its tokenizer, config and cache layout."""

    name: str
    module: nn.Module
    tokenizer: Any
    generation_config: GenerationConfig
    config: Any
    device: torch.device
    dtype: torch.dtype
    layers: tuple[LayerShape, ...]  #: layers of the cache
    layer_per_call: bool  #: each attention call of a step has its own cache layer; otherwise each ``layer_idx`` has one
    needs: AttentionNeeds
    max_position_embeddings: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    rotary: LengthDependentRotary | None  #: set if the rotary embedding depends on the sequence's length
    num_parameters: int
    weight_bytes: int
    quantization: str = "none"  #: of the linear layers: ``none``, ``int8``, ``int4`` or ``fp8``
    quantization_reason: str | None = None  #: why they have it, if the engine chose it
    has_unused_adapter: bool = False  #: the model's folder also holds a LoRA adapter, which is not applied
    file_format: str | None = None  #: the quantization of a GGUF file, such as ``Q4_K_M``
    decoder: CompiledDecoder | None = None  #: a second copy of the weights, if steps run in C++
    draft: LoadedModel | None = None  #: the draft model for speculation, with the same tokenizer

    def logits(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        rows: Tensor,
        paged: object,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Runs one packed forward pass.

        Args:
            input_ids, position_ids: int64 ``[1, num_tokens]``.
            rows: int64 ``[n]``: only these rows go through the output layer.
            paged: the step's metadata, as the attention function takes it.
            lengths: int64 ``[num_tokens]``, needed with :attr:`rotary`: the length of each token's sequence if the
                whole prompt is computed at once and the reply token by token.

        Returns:
            ``[n, vocab_size]``.
        """
        if self.rotary is not None:
            self.rotary.lengths = lengths
        output = self.module(
            input_ids=input_ids,
            position_ids=position_ids,
            use_cache=False,
            logits_to_keep=rows,
            paged=paged,
        )
        logits: Tensor = output.logits[0]
        return logits


def load_checkpoint(
    settings: EngineSettings, progress: Progress, compile_decoder: CompileDecoder | None = None
) -> LoadedModel:
    """Loads the model named in ``settings``. The attention function must be registered with transformers.

    Args:
        compile_decoder: called once the weights are loaded and known to run; what it returns becomes
            :attr:`LoadedModel.decoder`.

    Raises:
        ModelLoadError: the folder is missing or incomplete, the weights are pickled, the model needs remote code, or
            its architecture has no attention hook or keeps other state than keys and values.
    """
    device = _choose_device(settings.device)
    dtype = _choose_dtype(settings.dtype, device)
    if settings.quantization != "auto":
        choose_linears(settings.quantization, device, dtype)  # what cannot run is refused before anything is downloaded
    checkpoint = open_checkpoint(settings, progress)
    served = choose_served_format(settings, checkpoint, device, dtype)
    settings = settings.model_copy(update={"quantization": served.quantization})
    linear_classes = choose_linears(settings.quantization, device, dtype)
    config, tokenizer, generation_config = checkpoint.config, checkpoint.tokenizer, checkpoint.generation_config
    module = _load_module(checkpoint, settings.model, dtype, device, progress)
    calls = probe_calls(module, config, device, settings.model)
    layers, needs = calls.layers, calls.needs
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    weight_bytes = sum(parameter.nbytes for parameter in module.parameters())
    text_config = config.get_text_config()
    context_window = int(min(_context_window(text_config), min_cache_window(text_config, calls)))
    decoder = None
    if compile_decoder is not None and not calls.layer_per_call:
        decoder = compile_decoder(module, layers, needs, settings, weight_bytes, context_window, progress)
    rotary = replace_length_dependent(module, settings.model)
    check_positions(module, rotary, context_window, settings.model)
    if rotary is not None:
        rotary.lengths = torch.tensor([1, 2], device=device)  # for the probe steps below
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
    return LoadedModel(
        name=checkpoint.name,
        module=module,
        tokenizer=tokenizer,
        generation_config=generation_config,
        config=config,
        device=device,
        dtype=dtype,
        layers=layers,
        layer_per_call=calls.layer_per_call,
        needs=needs,
        max_position_embeddings=context_window,
        vocab_size=int(text_config.vocab_size),
        eos_token_ids=_eos_token_ids(generation_config, tokenizer, int(text_config.vocab_size)),
        rotary=rotary,
        num_parameters=num_parameters,
        weight_bytes=weight_bytes,
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


def prepare_model(settings: EngineSettings, progress: Progress) -> int:
    """Does what can be done before a model is loaded: refuses models that cannot run, and downloads missing files.

    Returns:
        Bytes that the weights will take in memory.

    Raises:
        ModelLoadError: as :func:`load_checkpoint`, except for errors that only show when the weights are loaded.
    """
    checkpoint = open_checkpoint(settings, progress)
    wanted = _choose_dtype(settings.dtype, _choose_device(settings.device))
    if checkpoint.num_parameters is not None:
        return checkpoint.num_parameters * wanted.itemsize
    if checkpoint.quantized is not None:
        return count_parameters(checkpoint.config, settings.model) * wanted.itemsize  # dense while it loads
    stored: torch.dtype = getattr(checkpoint.config, "dtype", None) or torch.float32
    return checkpoint.weight_bytes * wanted.itemsize // stored.itemsize


def open_checkpoint(settings: EngineSettings, progress: Progress) -> Checkpoint:
    """Opens the files of the model named in ``settings``, of whatever kind they are; downloads missing ones.

    Raises:
        ModelLoadError: they are missing, incomplete or damaged, or the model cannot run here.
    """
    source = find_model(settings.model)
    if isinstance(source, Path) and source.is_file():
        return open_gguf_checkpoint(source, settings, progress)
    return open_folder(source, settings, progress)


def _choose_device(choice: str) -> torch.device:
    if choice == "cpu":
        return torch.device("cpu")
    reason = _cuda_unavailable_reason()
    if reason is None:
        return torch.device("cuda")
    if choice == "cuda":
        raise ModelLoadError(f"device=cuda was asked for, but {reason}. Use device=cpu.")
    return torch.device("cpu")


def _cuda_unavailable_reason() -> str | None:
    """Returns why this PyTorch cannot compute on the first GPU; None if it can."""
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    built_for = [int(arch.removeprefix("sm_").rstrip("af")) for arch in torch.cuda.get_arch_list() if "sm_" in arch]
    if built_for and major * 10 + minor < min(built_for):
        return (
            f"the GPU's compute capability is {major}.{minor}, and this PyTorch needs {min(built_for) / 10:.1f} or more"
        )
    try:  # a driver that is too old for the libraries fails only here
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError as error:
        return f"a first computation on the GPU failed ({first_line(error)})"
    return None


def _choose_dtype(choice: str, device: torch.device) -> torch.dtype:
    if choice != "auto":
        dtype: torch.dtype = getattr(torch, choice)
        return dtype
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32


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
