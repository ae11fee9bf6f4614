"""Derives from a model how much memory a container needs to serve it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from engine.device.host_memory import host_memory_limit, machine_memory
from engine.errors import ModelLoadError
from engine.settings import EngineSettings

if TYPE_CHECKING:
    from engine.model.sizing import ModelSize

USEFUL_CONTEXT = 8192
"""Tokens of the cache that a suggested limit has room for: one long chat, or several short ones."""
CONTAINER_CACHE_SHARE = 0.5
"""Default share of a container's free memory for the cache: no other program uses it, the computation does."""
PROGRAM_BYTES = 10**9
"""Memory that the server takes beside weights and cache."""
_MARGIN = 0.05
"""Of a container's memory, what the least limit leaves for computing."""
_GIB = 1024**3
_GB = 10**9


def suggest_limit(settings: EngineSettings, size: ModelSize, weights: int, dtype: torch.dtype) -> int:
    """Returns the bytes with which a container holds the server, the weights, and the cache of a useful context.

    Args:
        weights: their bytes in memory.
        dtype: the model's.
    """
    from engine.model.sizing import CACHE_BYTES  # imports transformers' model code, which most starts do without

    if settings.kv_cache_memory is not None:
        return PROGRAM_BYTES + weights + int(settings.kv_cache_memory * _GIB)
    cache = size.cache(_useful_context(settings, size), settings.kv_cache_dtype)
    if settings.kv_cache_dtype != "int8":
        cache = cache * dtype.itemsize // CACHE_BYTES
    return PROGRAM_BYTES + weights + int(cache / CONTAINER_CACHE_SHARE)


def advise_more_memory(settings: EngineSettings, limit: int, missing: int, suggested: int) -> str:
    """Says to what a container's limit must be raised: as suggested where the machine has that much.

    Args:
        limit: bytes that the container may use now.
        missing: bytes more that the model needs at least.
        suggested: of :func:`suggest_limit`.
    """
    least = int((limit + missing) * (1 + _MARGIN))
    for size_bytes in (max(least, suggested), least):
        if _rounded_up(settings, size_bytes) <= machine_memory():
            return _advice(settings, size_bytes)
    return "take a machine with more memory"


def advise_larger_limit(settings: EngineSettings, size: ModelSize, weights: int, dtype: torch.dtype) -> str | None:
    """Returns the sentence that names a better limit, if a container's leaves less than a useful context.

    None outside a container, and where the machine has no more memory.
    """
    limit = host_memory_limit()
    try:
        better = suggest_limit(settings, size, weights, dtype)
    except ModelLoadError:  # a cache that is not estimated
        return None
    if limit is None or limit >= better or _rounded_up(settings, better) > machine_memory():
        return None
    wanted = (
        "For a cache of that size"
        if settings.kv_cache_memory is not None
        else f"For chats of {_useful_context(settings, size):,} tokens"
    )
    return f"{wanted}, {_advice(settings, better)}."


def _useful_context(settings: EngineSettings, size: ModelSize) -> int:
    return settings.max_model_len or min(size.max_context or USEFUL_CONTEXT, USEFUL_CONTEXT)


def _advice(settings: EngineSettings, size_bytes: int) -> str:
    if settings.memory_limit_variable is None:
        return f"raise the container's limit to {math.ceil(size_bytes / _GB)} GB"
    return f"put {settings.memory_limit_variable}={math.ceil(size_bytes / _GIB)}g into .env"


def _rounded_up(settings: EngineSettings, size_bytes: int) -> int:
    """Returns the bytes that the advice names."""
    unit = _GB if settings.memory_limit_variable is None else _GIB
    return math.ceil(size_bytes / unit) * unit
