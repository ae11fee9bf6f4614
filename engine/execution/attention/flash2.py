"""FlashAttention 2 from the ``flash-attn`` package (arXiv 2307.08691). Pages are multiples of 256 tokens."""

from __future__ import annotations

import importlib
import importlib.util

import torch
from torch import Tensor

from engine.device.cuda import capability_below
from engine.execution.attention.base import AttentionCall
from engine.execution.attention.flash import FlashKernel, FlashStep, window_size


class Flash2Kernel(FlashKernel):
    """``flash_attn.flash_attn_varlen_func`` with a block table."""

    name = "flash2"
    supports_softcap = True
    page_multiple = 256  #: csrc/flash_attn/flash_api.cpp refuses anything else

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        reason = super().unavailable_reason(device)
        if reason is not None:
            return reason
        # flash-attn-4 installs an empty package of the same name.
        if importlib.util.find_spec("flash_attn") is None or not hasattr(
            importlib.import_module("flash_attn"), "flash_attn_varlen_func"
        ):
            return "the package flash-attn is not installed"
        return capability_below(device, 8)

    def __init__(self) -> None:
        self._attend = importlib.import_module("flash_attn").flash_attn_varlen_func

    def forward(self, call: AttentionCall, prepared: FlashStep) -> Tensor:
        assert call.sinks is None
        attended: Tensor = self._attend(
            call.query,
            call.cache.keys,
            call.cache.values,
            cu_seqlens_q=prepared.cu_seqlens_q,
            cu_seqlens_k=prepared.cu_seqlens_k,
            max_seqlen_q=prepared.max_seqlen_q,
            max_seqlen_k=prepared.max_seqlen_k,
            softmax_scale=call.scale,
            causal=True,
            window_size=window_size(call.sliding_window),
            softcap=call.softcap or 0.0,
            block_table=prepared.block_table,
        )
        return attended
