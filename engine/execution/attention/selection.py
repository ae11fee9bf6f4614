"""Selects the attention kernel: the first one that can run on this machine and supports the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from engine.errors import ModelLoadError
from engine.execution.attention.base import AttentionKernel
from engine.execution.attention.cpu import CpuKernel
from engine.execution.attention.flash2 import Flash2Kernel
from engine.execution.attention.flash3 import Flash3Kernel
from engine.execution.attention.sdpa import SdpaKernel
from engine.execution.attention.triton_paged import TritonKernel
from engine.execution.attention.varlen import VarlenKernel
from engine.model.attention_hook import AttentionNeeds

log = logging.getLogger(__name__)

KERNELS: Sequence[type[AttentionKernel]] = (
    Flash3Kernel,
    Flash2Kernel,
    VarlenKernel,
    TritonKernel,
    CpuKernel,
    SdpaKernel,
)
"""All kernels, the fastest first; the last runs everywhere."""

DEFAULT_BLOCK_SIZE = 16
"""Tokens in a KV block, unless the kernel needs larger pages."""


def select_kernel(
    choice: str,
    needs: AttentionNeeds,
    device: torch.device,
    block_size: int | None,
    kv_cache_dtype: str = "auto",
) -> tuple[AttentionKernel, int]:
    """Returns the kernel named ``choice``, or the first suitable one if it is ``"auto"``, and the block size.

    Args:
        block_size: tokens in a KV block; None for the kernel's own choice.
        kv_cache_dtype: of :class:`engine.settings.EngineSettings`.

    Raises:
        ModelLoadError: the name is unknown, or no kernel is suitable; the message says why for each.
    """
    names = [kernel.name for kernel in KERNELS]
    if choice != "auto" and choice not in names:
        raise ModelLoadError(f"attention={choice!r} is unknown. Choose auto or one of: {', '.join(names)}.")
    reasons: list[str] = []
    notable_reasons: list[str] = []  # leaves out that GPU kernels need a GPU
    for kernel in KERNELS:
        if choice not in ("auto", kernel.name):
            continue
        reason = kernel.unavailable_reason(device) or kernel.unsupported_reason(needs)
        if reason is None and kv_cache_dtype == "int8" and not kernel.reads_int8_cache:
            reason = "it cannot read an int8 cache"
        if reason is None and block_size is not None and block_size % kernel.page_multiple:
            reason = f"kv_block_size must be a multiple of {kernel.page_multiple} (got {block_size})"
        if reason is None:
            size = block_size or max(DEFAULT_BLOCK_SIZE, kernel.page_multiple)
            rejected = f"; not {', not '.join(notable_reasons)}" if notable_reasons else ""
            log.info("attention: %s, KV blocks of %d tokens%s", kernel.name, size, rejected)
            return kernel(), size
        reasons.append(f"{kernel.name}: {reason}")
        if device.type in kernel.device_types:
            notable_reasons.append(reasons[-1])
    raise ModelLoadError(f"No attention kernel can run this model here ({'; '.join(reasons)}).")
