"""Refuses a model that is larger than the memory, before its weights are read, with the numbers and what to choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.device.host_memory import host_memory_limit
from engine.device.memory import available_memory
from engine.errors import ModelLoadError
from engine.model.checkpoint import Checkpoint
from engine.model.gguf.model_file import FLOATS
from engine.model.memory_limit import advise_larger_limit, advise_more_memory, suggest_limit
from engine.model.served_format import ServedFormat, runs_quantization
from engine.model.sizing import CACHE_BYTES, WEIGHT_FORMATS, ModelSize, cache_of_config, size_of_config
from engine.settings import EngineSettings

MIN_CONTEXT = 512
"""Tokens of the shortest context that a model is loaded with, unless ``max_model_len`` says otherwise."""
_GIB = 1024**3
_GB = 10**9


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The least memory that a model runs in. Sizes are in bytes."""

    weights: int
    number_format: str  #: of the weights, such as ``bfloat16``, ``int4`` or ``Q4_K_M``
    cache: int  #: the smallest KV cache that is useful, or the one that is asked for
    cache_of: str  #: what it holds
    setting: str | None  #: that can be lowered for a smaller cache

    @property
    def total(self) -> int:
        return self.weights + self.cache


def require_memory(
    settings: EngineSettings,
    checkpoint: Checkpoint,
    served: ServedFormat,
    device: torch.device,
    dtype: torch.dtype,
    released: int = 0,
) -> None:
    """Refuses a model that cannot fit into the memory that is free now.

    Counts the weights once and the smallest cache, without what the computation takes, so no model that can run is
    refused.

    Args:
        released: bytes that the loaded model's memory adds once it is unloaded.

    Raises:
        ModelLoadError: with what the model needs, what is free, and what to choose instead.
    """
    free = available_memory(device) + released
    config = checkpoint.config
    cache, cache_of = _smallest_cache(settings, config, dtype)
    if max(checkpoint.weight_bytes, _dense_bytes(checkpoint, dtype)) + cache <= free:
        return  # nearly always; what follows builds the model from shapes, to count its parameters
    try:
        size = size_of_config(config, settings.model)
    except ModelLoadError:  # a kind of model that is not estimated
        return
    weights, name = _weights(settings, checkpoint, size, served, device, dtype)
    need = MemoryNeed(weights, name, cache, cache_of, _setting_of_cache(settings))
    if need.total <= free:
        return
    smaller = _smaller_formats(checkpoint, size, served, device, dtype)
    limit = host_memory_limit() if device.type == "cpu" else None
    more = "free memory"
    if limit is not None:
        more = advise_more_memory(settings, limit, need.total - free, suggest_limit(settings, size, weights, dtype))
    raise ModelLoadError(_sentence(settings.model, need, free, limit, smaller, more))


def advise_for_small_cache(
    settings: EngineSettings, checkpoint: Checkpoint, served: ServedFormat, device: torch.device, dtype: torch.dtype
) -> str | None:
    """Returns the sentence that names a better limit of the container than the present one; None if it has enough."""
    if device.type != "cpu":
        return None
    try:
        size = size_of_config(checkpoint.config, settings.model)
    except ModelLoadError:  # a kind of model that is not estimated
        return None
    weights, _name = _weights(settings, checkpoint, size, served, device, dtype)
    return advise_larger_limit(settings, size, weights, dtype)


def _smallest_cache(settings: EngineSettings, config: Any, dtype: torch.dtype) -> tuple[int, str]:
    """Returns the bytes of the smallest useful cache, or of the one that is asked for, and what it holds."""
    if settings.kv_cache_memory is not None:
        return int(settings.kv_cache_memory * _GIB), "the cache"
    text = config.get_text_config()
    own = int(getattr(text, "max_position_embeddings", None) or MIN_CONTEXT)
    context = settings.max_model_len or min(own, MIN_CONTEXT)
    cache_of = f"the cache of {context:,} tokens"
    try:
        cache = cache_of_config(config, settings.model, context, settings.kv_cache_dtype)
    except ModelLoadError:  # layers of a kind that is not estimated: the weights are checked all the same
        return 0, cache_of
    return cache if settings.kv_cache_dtype == "int8" else cache * dtype.itemsize // CACHE_BYTES, cache_of


def _setting_of_cache(settings: EngineSettings) -> str | None:
    """Returns the name of the setting that the cache's size comes from."""
    names = ("kv_cache_memory", "max_model_len")
    return next((name for name in names if getattr(settings, name) is not None), None)


def _dense_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Returns an upper bound of the weights' bytes in memory, from the sizes of the files."""
    if checkpoint.num_parameters is not None:
        return checkpoint.num_parameters * dtype.itemsize
    if checkpoint.quantized is not None:
        return checkpoint.weight_bytes * 8 * dtype.itemsize // min(checkpoint.quantized.bits, 8)
    stored: torch.dtype = getattr(checkpoint.config, "dtype", None) or torch.float32
    return checkpoint.weight_bytes * dtype.itemsize // stored.itemsize


def _weights(
    settings: EngineSettings,
    checkpoint: Checkpoint,
    size: ModelSize,
    served: ServedFormat,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[int, str]:
    """Returns the least bytes that the weights take in memory, and the name of their format."""
    on_cpu = device.type == "cpu"
    if served.quantization != "none" and on_cpu:
        weights = size.weights(WEIGHT_FORMATS[served.quantization], dtype.itemsize)
        # a checkpoint in blocks is served as it is stored, which may be smaller
        return min(weights, checkpoint.weight_bytes) if served.in_blocks else weights, served.quantization
    is_packed = settings.native and settings.dtype == "auto" and on_cpu
    if checkpoint.file_format is not None and checkpoint.file_format not in FLOATS and is_packed:
        return checkpoint.weight_bytes, checkpoint.file_format
    return size.parameters * dtype.itemsize, str(dtype).removeprefix("torch.")


def _smaller_formats(
    checkpoint: Checkpoint, size: ModelSize, served: ServedFormat, device: torch.device, dtype: torch.dtype
) -> Mapping[str, int]:
    """Returns the quantizations that the model can be loaded with, with the bytes of the weights."""
    is_float = checkpoint.file_format is None or checkpoint.file_format in FLOATS
    if not is_float or checkpoint.quantized is not None or served.quantization == "int4" or device.type != "cpu":
        return {}
    return {
        name: size.weights(WEIGHT_FORMATS[name], dtype.itemsize)
        for name in ("int8", "int4")
        if name != served.quantization and runs_quantization(name, device, dtype)
    }


def _sentence(model: str, need: MemoryNeed, free: int, limit: int | None, smaller: Mapping[str, int], more: str) -> str:
    fitting = {name: size + need.cache for name, size in smaller.items() if size + need.cache <= free}
    choices = [f"quantization={name}, which needs {_gb(size)}" for name, size in fitting.items()]
    if need.setting is not None and need.weights < free:
        choices.append(f"a smaller {need.setting}")
    choices.append("a smaller model" if choices else "a smaller model or a file with fewer bits per weight")
    place = f" in a container that may use {_gb(limit)}" if limit is not None else ""
    return (
        f"{model} does not fit into memory: it needs {_gb(need.total)}, which are {_gb(need.weights)} for its weights "
        f"in {need.number_format} and {_gb(need.cache)} for {need.cache_of}, and {_gb(free)} are "
        f"free{place}. Choose {', or '.join(choices)}, or {more}."
    )


def _gb(size: int) -> str:
    return f"{size / _GB:,.2f} GB" if size >= _GB / 100 else f"{size / 10**6:.1f} MB"
