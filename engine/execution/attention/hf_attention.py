"""The attention function registered with transformers. Every model calls it, whatever its architecture."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.execution.attention.base import AttentionCall, PagedMetadata
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
    """Stores this step's keys and values in their slots, then attends over the blocks.

    Args:
        module: the attention module; its ``layer_idx`` is the layer's number.
        query: ``[1, num_heads, num_tokens, head_dim]``, all requests packed one after another.
        key, value: ``[1, num_kv_heads, num_tokens, head_dim]``, rotary positions applied.
        attention_mask: None, unless the model has a custom mask.
        paged: the step's metadata; transformers passes unknown keywords of ``model.forward`` on to this function.

    Returns:
        ``[1, num_tokens, num_heads, value_head_dim]`` and no weights.

    Raises:
        UnsupportedAttention: there is a mask, or no step metadata.
    """
    if attention_mask is not None:
        raise UnsupportedAttention(
            "its attention uses a custom mask, and Deskmate's kernels support only causal and sliding-window masks."
        )
    if paged is None:
        raise UnsupportedAttention(
            "its code in transformers does not pass keyword arguments on to its attention, so the attention cannot "
            "find the KV cache."
        )
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if isinstance(paged, LayerProbe):
        paged.is_causal &= getattr(module, "is_causal", True)
        return paged.attend(layer, query, key, value, scale, sliding_window, softcap or 0.0, s_aux), None
    if paged.calls is not None:
        layer = next(paged.calls)
    cache = paged.layers[layer]
    group = paged.groups[paged.group_of_layer[layer]]
    cache.store(group.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    call = AttentionCall(query[0].transpose(0, 1), cache, scale, sliding_window, softcap, s_aux)
    return paged.kernel.forward(call, group.prepared).unsqueeze(0), None


def register() -> None:
    """Registers the function with transformers under :data:`ATTENTION_NAME`. Safe to call again."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
