"""The one attention function registered with transformers; every model calls it, whatever its architecture."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.execution.attention.base import PagedMetadata
from engine.model.attention_hook import ATTENTION_NAME, LayerProbe, UnsupportedAttention


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
