"""The contract between a model and the engine's registered attention function, and the probe that inspects it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.scheduling.cache_layout import LayerShape

ATTENTION_NAME = "deskmate_paged"
"""Name of the registered attention function. No mask function is registered under it, so transformers builds no mask:
the kernels apply causality."""


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a model needs of an attention kernel."""

    sliding_window: bool = False
    softcap: bool = False
    sinks: bool = False
    dtype: torch.dtype = torch.float32
    head_dim: int = 64  #: the widest of all layers
    value_head_dim: int = 64


class UnsupportedAttention(RuntimeError):
    """A model calls attention in a way that the engine does not support; the message completes "cannot run here: "."""


class LayerProbe:
    """Passed in place of the step's metadata at load: records each layer's shape while computing plain attention."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, LayerShape]] = []  #: in order: the module's ``layer_idx`` and its layer's shape
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
