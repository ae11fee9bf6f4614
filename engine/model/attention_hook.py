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
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        sliding_window: int | None,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        """Computes causal attention without the window; overridden where a check does something else.

        Args:
            query, key, value: ``[1, heads, num_tokens, head_dim]``.
            softcap: of the scaled scores; 0 for none.
            sinks: a score for each query head ``[num_heads]`` that takes part in the softmax without a value.

        Returns:
            ``[1, num_tokens, num_heads, head_dim]``.
        """
        self.softcap |= softcap != 0
        self.sinks |= sinks is not None
        shape = LayerShape(
            num_kv_heads=key.shape[1],
            head_dim=key.shape[-1],
            value_head_dim=value.shape[-1],
            sliding_window=sliding_window,
        )
        self.calls.append((layer, shape))
        if softcap == 0 and sinks is None:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scale, enable_gqa=key.shape[1] != query.shape[1]
            ).transpose(1, 2)
        groups = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(groups, dim=1).transpose(2, 3) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
        probs = scores.softmax(dim=-1, dtype=torch.float32)[..., : key.shape[2]].to(value.dtype)
        return (probs @ value.repeat_interleave(groups, dim=1)).transpose(1, 2)
