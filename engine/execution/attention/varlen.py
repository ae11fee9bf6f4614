"""PyTorch's built-in paged FlashAttention, torch 2.12 or later, no extra package. Pages are multiples of 256 tokens."""

from __future__ import annotations

import importlib.util
import inspect

import torch
from torch import Tensor

from engine.device.cuda import capability_below
from engine.execution.attention.base import AttentionCall
from engine.execution.attention.flash import FlashKernel, FlashStep, window_size


class VarlenKernel(FlashKernel):
    """``torch.nn.attention.varlen.varlen_attn`` with a block table."""

    name = "varlen"
    supports_softcap = False
    page_multiple = 256

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        reason = super().unavailable_reason(device)
        if reason is not None:
            return reason
        if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
            from torch.nn.attention.varlen import varlen_attn

            if "block_table" in inspect.signature(varlen_attn).parameters:
                return capability_below(device, 8)
        return f"it needs torch 2.12 or later (found {torch.__version__})"

    def __init__(self) -> None:
        from torch.nn.attention.varlen import varlen_attn

        self._attend = varlen_attn

    def forward(self, call: AttentionCall, prepared: FlashStep) -> Tensor:
        assert call.softcap is None
        assert call.sinks is None
        attended = self._attend(
            call.query,
            call.cache.keys,
            call.cache.values,
            prepared.cu_seqlens_q,
            prepared.cu_seqlens_k,
            prepared.max_seqlen_q,
            prepared.max_seqlen_k,
            scale=call.scale,
            window_size=window_size(call.sliding_window),
            enable_gqa=call.query.shape[1] != call.cache.keys.shape[2],
            seqused_k=prepared.seqused_k,
            block_table=prepared.block_table,
        )
        assert isinstance(attended, Tensor)
        return attended
