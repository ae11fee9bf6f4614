"""How a model calls the attention function that the engine registers, and what a first call tells of the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.scheduling.cache_layout import LayerShape

ATTENTION_NAME = "deskmate_paged"
"""No mask function is registered under this name, so transformers builds no mask: causality is ours."""


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a model asks of a kernel."""

    sliding_window: bool = False
    softcap: bool = False
    sinks: bool = False
    dtype: torch.dtype = torch.float32
    head_dim: int = 64  #: the widest of all layers
    value_head_dim: int = 64


class UnsupportedAttention(RuntimeError):
    """A model calls its attention in a way that the engine cannot serve; the message completes "cannot run here: "."""


class LayerProbe:
    """Passed in place of the metadata once, at load: learns each layer's shape while computing plain attention."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, LayerShape]] = []  #: in their order: the module's ``layer_idx``, and what it stores
        self.softcap = False
        self.sinks = False
        self.is_causal = True

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, sliding_window: int | None
    ) -> Tensor:
        shape = LayerShape(
            num_kv_heads=key.shape[1],
            head_dim=key.shape[-1],
            value_head_dim=value.shape[-1],
            sliding_window=sliding_window,
        )
        self.calls.append((layer, shape))
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=key.shape[1] != query.shape[1]
        ).transpose(1, 2)
