"""Sizes the KV cache and the context window from the available memory, once at start."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass

import torch

from engine.device.host_memory import host_memory_limit
from engine.device.memory import available_memory
from engine.errors import ModelLoadError
from engine.execution.attention.base import AttentionKernel
from engine.execution.attention.int8_cache import check_int8_cache, int8_bytes
from engine.execution.attention.selection import select_kernel
from engine.execution.speculation.draft_model import draft_layout
from engine.model.attention_hook import LayerProbe
from engine.model.loaded_model import LoadedModel
from engine.model.memory_limit import CONTAINER_CACHE_SHARE
from engine.scheduling.cache_layout import CacheLayout, LayerShape, blocks_for_sequence
from engine.settings import EngineSettings

GIB = 1024**3
DEFAULT_CPU_CACHE_SHARE = 0.25
"""Default share of the machine's free memory for the cache; the rest is left to other programs."""
MAX_DEFAULT_CPU_CACHE_BYTES = 4 * GIB
"""Upper bound of that default."""
SMALL_MODEL_BYTES = 32 * 1024**2
"""Models with less weight memory run on one CPU thread by default."""
SAMPLER_COPIES = 6
"""fp32 copies of the logits that the sampler holds at once: sorted values, their order in 8 bytes, probabilities and
their running sum."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The KV cache, and the attention kernel that reads it."""

    kernel: AttentionKernel
    layout: CacheLayout
    block_size: int  #: tokens in a block
    num_blocks: int  #: the null block included
    max_model_len: int  #: maximum tokens of a sequence, prompt and reply together


def suitable_num_threads(model: LoadedModel) -> int:
    """Returns the default number of CPU threads for a model.

    A small model gets one: its operations are too short to share, so threads would mostly wait for one another, and
    far longer where another program holds a core (measured on the guide, 4 M parameters and 2 cores, through
    transformers: 5.9 ms a step on one thread and 5.0 on two when idle; 7 and 60 beside one busy process).
    """
    if model.weight_bytes < SMALL_MODEL_BYTES:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plan_capacity(model: LoadedModel, settings: EngineSettings) -> Capacity:
    """Sizes the cache as configured, else for ``max_num_seqs`` full-length sequences, as far as memory allows.

    Without a configured ``max_model_len``, the context window shrinks to what fits.

    Raises:
        ModelLoadError: no attention kernel is suitable, the configured context window is longer than the model's, or
            one sequence does not fit.
    """
    layout = CacheLayout.of(model.layers)
    kernel, block_size = select_kernel(
        settings.attention, model.needs, model.device, settings.kv_block_size, settings.kv_cache_dtype
    )
    asked_len = settings.max_model_len
    if asked_len is not None and asked_len > model.max_position_embeddings:
        raise ModelLoadError(
            f"max_model_len={asked_len} is more than {model.name} supports. Lower it to "
            f"{model.max_position_embeddings} or less."
        )
    max_model_len = asked_len or model.max_position_embeddings
    block_bytes = cache_bytes_per_token(model, layout, settings.kv_cache_dtype, block_size) * block_size
    if model.draft is not None:
        layout_of_draft = draft_layout(model.draft)
        block_bytes += (
            cache_bytes_per_token(model.draft, layout_of_draft, settings.kv_cache_dtype, block_size) * block_size
        )

    def blocks_for(num_tokens: int) -> int:
        return blocks_for_sequence(layout.windows, num_tokens, settings.max_batched_tokens, block_size)

    blocks_per_sequence = blocks_for(max_model_len)
    if settings.num_kv_blocks is not None:
        usable = settings.num_kv_blocks - 1
        free = available_memory(model.device)
        if settings.num_kv_blocks * block_bytes > free:
            raise ModelLoadError(
                f"num_kv_blocks={settings.num_kv_blocks} takes {settings.num_kv_blocks * block_bytes / GIB:.1f} GiB, "
                f"but only {free / GIB:.1f} GiB of memory are free. Lower it."
            )
    else:
        budget = _budget(model, settings)
        usable = min(budget // block_bytes - 1, blocks_per_sequence * settings.max_num_seqs)
    if usable < blocks_per_sequence:
        fits = bisect_right(range(max_model_len + 1), max(usable, 0), key=blocks_for) - 1
        if asked_len is not None or fits < 16:
            raise ModelLoadError(
                f"One sequence of {max_model_len} tokens needs {blocks_per_sequence * block_bytes / GIB:.2f} GiB "
                f"of KV cache ({blocks_per_sequence} blocks of {block_size} tokens), but there is "
                f"room for {fits} tokens. Lower max_model_len to {fits} or less, or raise the cache (kv_cache_memory)."
            )
        max_model_len = fits
    return Capacity(kernel, layout, block_size, num_blocks=usable + 1, max_model_len=max_model_len)


def cache_bytes_per_token(model: LoadedModel, layout: CacheLayout, kv_cache_dtype: str, block_size: int) -> int:
    """Returns the bytes of the cache that one token takes in the largest group of layers.

    Raises:
        ModelLoadError: the model's keys and values cannot be kept in that dtype.
    """
    if kv_cache_dtype == "int8":
        check_int8_cache(layout.shapes, model.name, block_size)
    return sum(layer_bytes(shape, model, kv_cache_dtype) for shape in layout.stored_shapes)


def layer_bytes(shape: LayerShape, model: LoadedModel, kv_cache_dtype: str) -> int:
    """Returns the bytes of the cache that one token takes in a layer."""
    if kv_cache_dtype == "int8":
        return int8_bytes(shape)
    return shape.num_kv_heads * (shape.head_dim + shape.value_head_dim) * model.dtype.itemsize


def _budget(model: LoadedModel, settings: EngineSettings) -> int:
    """Returns the bytes for the cache: as configured, else a share of the free memory."""
    device = model.device
    free = available_memory(device)
    if settings.kv_cache_memory is not None:
        asked = int(settings.kv_cache_memory * GIB)
        if asked > free:
            raise ModelLoadError(
                f"kv_cache_memory={settings.kv_cache_memory:g} GiB is too much: only {free / GIB:.1f} GiB of memory "
                "are free. Lower it."
            )
        return asked
    if device.type == "cuda":
        step = _peak_of_largest_step(model, settings)
        if settings.cuda_graphs:
            step *= 2  # CUDA graphs keep the memory of a step in a pool of their own
        free, total = torch.cuda.mem_get_info(device)
        return gpu_budget(free, total, step, settings.gpu_memory_utilization)
    share = DEFAULT_CPU_CACHE_SHARE if host_memory_limit() is None else CONTAINER_CACHE_SHARE
    return int(min(free * share, MAX_DEFAULT_CPU_CACHE_BYTES))


def gpu_budget(free: int, total: int, step: int, utilization: float) -> int:
    """Returns the bytes for the cache on a GPU: its share, less the memory in use and that of one step.

    Args:
        free, total: bytes of the GPU.
        step: peak bytes of a step, on top of weights and cache.
        utilization: ``EngineSettings.gpu_memory_utilization``.

    Raises:
        ModelLoadError: nothing is left; says what to lower.
    """
    budget = int(total * utilization) - (total - free) - step
    if budget <= 0:
        raise ModelLoadError(
            f"No memory is left for the KV cache: of the GPU's {total / GIB:.1f} GiB, {(total - free) / GIB:.1f} are "
            f"taken and a step needs {step / GIB:.1f}, which is more than gpu_memory_utilization={utilization:g} "
            "allows. Lower max_batched_tokens or max_num_seqs, raise gpu_memory_utilization, or use a smaller model."
        )
    return budget


def _peak_of_largest_step(model: LoadedModel, settings: EngineSettings) -> int:
    """Returns the peak bytes of a step on top of weights and cache: measured, plus an estimate for the sampler."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    try:
        run_largest_step(model, settings)
        if model.draft is not None:
            run_largest_step(model.draft, settings)
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(
            f"A step of {settings.max_batched_tokens} tokens does not fit into the GPU's memory beside {model.name}. "
            "Lower max_batched_tokens or max_num_seqs, or use a smaller model."
        ) from error
    peak = torch.cuda.max_memory_allocated(model.device) - before
    torch.cuda.empty_cache()
    return peak + SAMPLER_COPIES * settings.max_num_seqs * model.vocab_size * torch.float32.itemsize


@torch.inference_mode()
def run_largest_step(model: LoadedModel, settings: EngineSettings) -> None:
    """Computes the largest possible step, without a cache."""
    num_tokens = settings.max_batched_tokens
    positions = torch.arange(num_tokens, device=model.device) % model.max_position_embeddings
    rows = torch.arange(settings.max_sampled_rows, device=model.device)
    model.logits(torch.zeros_like(positions)[None], positions[None], rows, LayerProbe(), positions + 1)
