"""Chooses the number format that a model's linear layers are served in: the checkpoint's own, or one that fits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.device.memory import available_memory
from engine.errors import ModelLoadError
from engine.model.checkpoint import Checkpoint
from engine.model.quantization import choose_linears
from engine.model.quantized import QuantizedFormat
from engine.model.sizing import WEIGHT_FORMATS, ModelSize, WeightFormat, size_of_config
from engine.settings import EngineSettings

log = logging.getLogger(__name__)

USABLE = 0.9
"""Share of the free memory that weights and the cache of one full chat may take; the rest is for the computation."""
_GB = 10**9


@dataclass(frozen=True, slots=True)
class ServedFormat:
    """The number format of a model's linear layers."""

    quantization: str  #: ``none``, ``int8``, ``int4`` or ``fp8``
    reason: str | None = None  #: with the numbers, if the engine chose it
    in_blocks: bool = False  #: the C++ decoder computes the checkpoint's own groups as blocks, if it runs the model


def smallest_served_format(
    settings: EngineSettings, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> ServedFormat:
    """Returns the format with the fewest bits that :func:`choose_served_format` may choose, whatever memory is free."""
    is_open = settings.quantization == "auto" and checkpoint.file_format in (None, "F32", "F16", "BF16")
    if not is_open or checkpoint.quantized is not None:
        return _chosen(settings, checkpoint, device, dtype)
    return ServedFormat(next((name for name in ("int4", "int8") if runs_quantization(name, device, dtype)), "none"))


def choose_served_format(
    settings: EngineSettings, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> ServedFormat:
    """Returns the format that ``settings`` ask for, or, with ``auto`` or a quantized checkpoint, chooses one.

    A quantized checkpoint keeps its number of bits, unless another quantization or a dtype is asked for: with a dtype,
    its weights are served dequantized.

    Raises:
        ModelLoadError: with ``auto``, the weights fit into memory in no format.
    """
    chosen = _chosen(settings, checkpoint, device, dtype)
    if chosen.reason is not None:
        log.info("%s is served with quantization=%s: %s", settings.model, chosen.quantization, chosen.reason)
    return chosen


def _chosen(settings: EngineSettings, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> ServedFormat:
    is_open = settings.quantization == "auto" or (settings.quantization == "none" and settings.dtype == "auto")
    if checkpoint.quantized is not None and is_open:
        return _of_checkpoint(checkpoint.quantized, device, dtype)
    if settings.quantization == "auto" and checkpoint.file_format not in (None, "F32", "F16", "BF16"):
        return ServedFormat("none", f"the file is stored as {checkpoint.file_format}")
    if settings.quantization == "auto":
        return _that_fits(settings, checkpoint, device, dtype)
    return ServedFormat(settings.quantization)


def _of_checkpoint(stored: QuantizedFormat, device: torch.device, dtype: torch.dtype) -> ServedFormat:
    """Returns the format with as many bits as the checkpoint's."""
    candidates = ("fp8", "int8") if stored.is_float else ("int8",) if stored.bits == 8 else ("int4", "int8")
    for candidate in candidates:
        if runs_quantization(candidate, device, dtype):
            in_blocks = candidate == "int4" and stored.has_groups
            return ServedFormat(candidate, f"the checkpoint is stored as {stored.label}", in_blocks)
    return ServedFormat("none", f"the checkpoint is stored as {stored.label}, and this device runs no such format")


def _that_fits(
    settings: EngineSettings, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> ServedFormat:
    """Returns the most exact format whose weights fit into memory with the cache of one full chat."""
    size = size_of_config(checkpoint.config, settings.model)
    context = settings.max_model_len or size.max_context
    free, cache = available_memory(device), size.cache(context, settings.kv_cache_dtype)
    sizes = dict(_sizes(size, device, dtype))
    shown = str(dtype).removeprefix("torch.")
    numbers = ", ".join(f"{shown if name == 'none' else name} {_gb(needed)}" for name, needed in sizes.items())
    sums = f"weights take {numbers}; a chat of {context:,} tokens {_gb(cache)}; {_gb(free)} are free"
    for name, needed in sizes.items():
        if needed + cache <= USABLE * free:
            return ServedFormat(name, sums)
    smallest = min(sizes, key=sizes.__getitem__)
    if sizes[smallest] > free:
        raise ModelLoadError(f"{settings.model} does not fit into memory in any format: {sums}.")
    return ServedFormat(smallest, f"{sums}, so that chats must be shorter")


def _sizes(size: ModelSize, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, int]]:
    """Yields the formats that run here, the most exact first, with the bytes of the weights."""
    yield "none", size.weights(WeightFormat(dtype.itemsize, frozenset({device.type})), dtype.itemsize)
    for name in ("int8", "int4"):
        if runs_quantization(name, device, dtype):
            yield name, size.weights(WEIGHT_FORMATS[name], dtype.itemsize)


def runs_quantization(quantization: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether linear layers can be served in this format here."""
    try:
        choose_linears(quantization, device, dtype)
    except ModelLoadError:
        return False
    return True


def _gb(size: int) -> str:
    return f"{size / _GB:.2f} GB" if size >= _GB / 100 else f"{size / 10**6:.1f} MB"
