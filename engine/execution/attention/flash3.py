"""FlashAttention 3 (arXiv 2407.08608), for Hopper GPUs with its package installed. Pages of any size."""

from __future__ import annotations

import importlib
import importlib.util

import torch
from torch import Tensor

from engine.execution.attention.base import AttentionCall
from engine.execution.attention.flash import FlashKernel, FlashStep, window_size


class Flash3Kernel(FlashKernel):
    """``flash_attn_interface.flash_attn_with_kvcache``, which takes packed queries of any length over pages."""

    name = "flash3"
    supports_softcap = True
    page_multiple = 1

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        reason = super().unavailable_reason(device)
        if reason is not None:
            return reason
        if importlib.util.find_spec("flash_attn_interface") is None:
            return "the package flash-attn-3 is not installed"
        major, minor = torch.cuda.get_device_capability(device)
        return None if major == 9 else f"it runs on Hopper GPUs, compute capability 9.0 (found {major}.{minor})"

    def __init__(self) -> None:
        self._attend = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache

    def forward(self, call: AttentionCall, prepared: FlashStep) -> Tensor:
        assert call.sinks is None
        attended: Tensor = self._attend(
            call.query,
            call.cache.keys,
            call.cache.values,
            cache_seqlens=prepared.seqused_k,
            page_table=prepared.block_table,
            cu_seqlens_q=prepared.cu_seqlens_q,
            max_seqlen_q=prepared.max_seqlen_q,
            softmax_scale=call.scale,
            causal=True,
            window_size=window_size(call.sliding_window),
            softcap=call.softcap or 0.0,
        )
        return attended
