"""The one attention function registered with transformers; every model calls it, whatever its architecture."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from engine.execution.attention.base import LayerShape, PagedMetadata

ATTENTION_NAME = "deskmate_paged"
"""No mask function is registered under this name, so transformers builds no mask: causality is ours."""


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


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: PagedMetadata | LayerProbe | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """Store this step's keys and values in their slots, then attend over the blocks.

    Args:
        module: the attention module; its ``layer_idx`` names the layer.
        query: ``[1, num_heads, num_tokens, head_dim]``, all requests packed behind one another.
        key, value: ``[1, num_kv_heads, num_tokens, head_dim]``, rotary positions applied.
        attention_mask: None, or the model masks in a way of its own.
        paged: the step; every unknown keyword of ``model.forward`` arrives here.

    Returns:
        ``[1, num_tokens, num_heads, value_head_dim]`` and no weights.

    Raises:
        UnsupportedAttention: there is a mask, or no step.
    """
    if attention_mask is not None:
        raise UnsupportedAttention(
            "its attention comes with a mask of its own, and Deskmate's kernels know causal and sliding-window masks "
            "only."
        )
    if paged is None:
        raise UnsupportedAttention(
            "its code in transformers does not pass the arguments of a step on to its attention, so that the attention "
            "cannot find the cache."
        )
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if isinstance(paged, LayerProbe):
        paged.softcap |= bool(softcap)
        paged.sinks |= s_aux is not None
        paged.is_causal &= getattr(module, "is_causal", True)
        return paged.attend(layer, query, key, value, scale, sliding_window), None
    if paged.calls is not None:
        layer = next(paged.calls)
    cache = paged.layers[layer]
    group = paged.groups[paged.group_of_layer[layer]]
    cache.keys.flatten(0, 1).index_copy_(0, group.slots, key[0].transpose(0, 1))
    cache.values.flatten(0, 1).index_copy_(0, group.slots, value[0].transpose(0, 1))
    attended = paged.kernel.forward(
        query[0].transpose(0, 1),
        cache.keys,
        cache.values,
        group.prepared,
        scale=scale,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return attended.unsqueeze(0), None


def register() -> None:
    """Make the function known to transformers under :data:`ATTENTION_NAME`. Safe to call again."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
