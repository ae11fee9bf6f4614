"""The fallback kernel: gathers blocks into contiguous keys and values, then calls PyTorch's SDPA.

Used if no other kernel supports the model. Decodes run together, padded to a common length; prompt chunks run one by
one. Soft-capped scores and attention sinks, which PyTorch's function lacks, are computed eagerly, with fp32 scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.execution.attention.base import AttentionCall, AttentionKernel, LayerCache, Sequences
from engine.execution.attention.int8_cache import Int8LayerCache
from engine.scheduling.block_pool import NULL_BLOCK


@dataclass(frozen=True, slots=True)
class _Group:
    """Chunks with the same number of queries that run in one call, keys padded to the longest."""

    rows: Tensor | None  #: int64 ``[batch * query_len]``: rows of the packed queries; None for all, in order
    blocks: Tensor | slice  #: int64 ``[batch, num_blocks]``, padded with the null block; a slice needs no gather
    positions: Tensor  #: int64 ``[batch, query_len]``: position of each query in its sequence
    num_keys: int  #: keys of the longest sequence
    sees_all_keys: bool  #: every query sees all ``num_keys`` keys, apart from a sliding window
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)  #: by sliding window, made once per step

    def gather(self, cache: LayerCache, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns keys and values, ``[batch, num_kv_heads, num_keys, head_dim]``; in ``dtype`` from a quantized cache.

        They are views if ``blocks`` is a slice and the cache is not quantized.
        """
        if isinstance(cache, Int8LayerCache):
            keys, values = cache.read(self.blocks, dtype)
        else:
            keys, values = cache.keys[self.blocks], cache.values[self.blocks]
        return self._join(keys), self._join(values)

    def _join(self, blocks: Tensor) -> Tensor:
        if isinstance(self.blocks, slice):
            blocks = blocks.unsqueeze(0)
        return blocks.flatten(1, 2)[:, : self.num_keys].transpose(1, 2)

    def mask(self, sliding_window: int | None) -> Tensor | None:
        """Boolean ``[batch, 1, query_len, num_keys]``, True where a query sees a key; None if all keys are seen."""
        if sliding_window not in self.masks:
            self.masks[sliding_window] = self._make_mask(sliding_window)
        return self.masks[sliding_window]

    def _make_mask(self, sliding_window: int | None) -> Tensor | None:
        if self.sees_all_keys and (sliding_window is None or self.num_keys <= sliding_window):
            return None
        keys = torch.arange(self.num_keys, device=self.positions.device)
        return visible_keys(self.positions, keys, sliding_window).unsqueeze(1)


class SdpaKernel(AttentionKernel):
    """Gathers blocks, then calls ``F.scaled_dot_product_attention`` with grouped heads."""

    name = "sdpa"
    device_types = frozenset({"cpu", "cuda"})
    supports_sliding_window = True
    supports_softcap = True
    supports_sinks = True
    page_multiple = 1
    reads_int8_cache = True

    def prepare(self, sequences: Sequences, device: torch.device) -> tuple[_Group, ...]:
        decodes: dict[int, list[int]] = {}
        prefills: list[list[int]] = []
        first_rows: list[int] = []
        row = 0
        for index, query_len in enumerate(sequences.query_lens):
            first_rows.append(row)
            row += query_len
            if query_len == 1:
                # Lengths within a factor of two share a call, so padding at most doubles what is read.
                decodes.setdefault(sequences.kv_lens[index].bit_length(), []).append(index)
            else:
                prefills.append([index])
        return tuple(_group(sequences, members, first_rows, device) for members in (*decodes.values(), *prefills))

    def forward(self, call: AttentionCall, prepared: tuple[_Group, ...]) -> Tensor:
        query, cache = call.query, call.cache
        num_tokens, num_heads, head_dim = query.shape
        output = query.new_empty(num_tokens, num_heads, cache.value_head_dim)
        for group in prepared:
            keys, values = group.gather(cache, query.dtype)
            rows = query if group.rows is None else query[group.rows]
            queries = rows.view(*group.positions.shape, num_heads, head_dim).transpose(1, 2)
            attended = dense_attention(call, queries, keys, values, group.mask(call.sliding_window))
            attended = attended.transpose(1, 2).flatten(0, 1)
            if group.rows is None:
                return attended
            output[group.rows] = attended
        return output


def visible_keys(positions: Tensor, keys: Tensor, sliding_window: int | None) -> Tensor:
    """Returns a boolean mask ``[..., query_len, num_keys]``: True where a query sees a key.

    Args:
        positions: int64 ``[..., query_len]``: positions of the queries.
        keys: int64 ``[num_keys]``: positions of the keys.
        sliding_window: as in :class:`AttentionCall`.
    """
    positions = positions.unsqueeze(-1)
    visible = keys <= positions
    if sliding_window is not None:
        visible &= keys > positions - sliding_window
    return visible


def dense_attention(
    call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, is_causal: bool = False
) -> Tensor:
    """Computes the attention of a batch over contiguous keys, with the scale, soft cap and sinks of ``call``.

    Args:
        call: the layer's options; its query and cache are not read.
        query: ``[batch, num_heads, query_len, head_dim]``.
        keys, values: ``[batch, num_kv_heads, num_keys, head_dim]``.
        mask: boolean, broadcast to ``[batch, num_heads, query_len, num_keys]``; None if every key is visible, or with
            ``is_causal``.
        is_causal: there are as many queries as keys, and each query sees the keys up to its own.

    Returns:
        ``[batch, num_heads, query_len, value_head_dim]``.
    """
    if call.softcap is None and call.sinks is None:
        return F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=is_causal,
            scale=call.scale,
            enable_gqa=keys.shape[1] != query.shape[1],
        )
    if is_causal:
        positions = torch.arange(keys.shape[2], device=keys.device)
        mask = visible_keys(positions, positions, None)
    return _eager_attention(call, query, keys, values, mask)


def _eager_attention(call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Computes :func:`dense_attention` with explicit scores, which are soft-capped and given sinks."""
    batch, num_heads, query_len, _head_dim = query.shape
    num_kv_heads = keys.shape[1]
    # Heads that share keys are adjacent, so the keys need not be repeated for each head.
    grouped = query.reshape(batch, num_kv_heads, num_heads // num_kv_heads * query_len, -1)
    scores = (grouped @ keys.transpose(-1, -2)).float() * call.scale
    scores = scores.view(batch, num_heads, query_len, -1)
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if call.sinks is not None:
        sink = call.sinks.float().view(1, num_heads, 1, 1).expand(batch, num_heads, query_len, 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = scores.softmax(-1)[..., : keys.shape[2]].to(values.dtype)
    return (weights.view(*grouped.shape[:3], -1) @ values).view(batch, num_heads, query_len, -1)


def _group(sequences: Sequences, members: list[int], first_rows: list[int], device: torch.device) -> _Group:
    kv_lens = [sequences.kv_lens[index] for index in members]
    query_len = sequences.query_lens[members[0]]
    positions = [list(range(kv_len - query_len, kv_len)) for kv_len in kv_lens]
    rows = [first_rows[index] + offset for index in members for offset in range(query_len)]
    return _Group(
        rows=None if len(members) == len(first_rows) else torch.tensor(rows, dtype=torch.int64, device=device),
        blocks=_blocks(sequences, members, device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        num_keys=max(kv_lens),
        sees_all_keys=query_len == 1 and min(kv_lens) == max(kv_lens),
    )


def _blocks(sequences: Sequences, members: list[int], device: torch.device) -> Tensor | slice:
    tables = [
        list(sequences.block_tables[index][: -(-sequences.kv_lens[index] // sequences.block_size)]) for index in members
    ]
    first, last = tables[0][0], tables[0][-1]
    if len(tables) == 1 and tables[0] == list(range(first, last + 1)):
        return slice(first, last + 1)
    width = max(len(table) for table in tables)
    padded = [table + [NULL_BLOCK] * (width - len(table)) for table in tables]
    return torch.tensor(padded, dtype=torch.int64, device=device)
