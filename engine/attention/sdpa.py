"""Blocks gathered into contiguous keys and values, then PyTorch's scaled dot-product attention.

The kernel of the CPU, and the last resort everywhere. Decodes run together, padded to a common length;
prompt chunks run one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.base import AttentionKernel, Sequences
from engine.kv_cache import NULL_BLOCK


@dataclass(frozen=True, slots=True)
class _Group:
    """Chunks with equally many queries that run in one call, keys padded to the longest."""

    rows: Tensor  #: int64 ``[batch * query_len]``: rows of the packed queries
    blocks: Tensor  #: int64 ``[batch, num_blocks]``, padded with the null block
    positions: Tensor  #: int64 ``[batch, query_len]``: position of each query in its sequence
    sees_all_keys: bool  #: every query sees every gathered key, but for a sliding window
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)  #: made once per step and window

    def mask(self, num_keys: int, sliding_window: int | None) -> Tensor | None:
        """Boolean ``[batch, 1, query_len, num_keys]``, True where a query may look; None for everywhere."""
        if sliding_window not in self.masks:
            self.masks[sliding_window] = self._make_mask(num_keys, sliding_window)
        return self.masks[sliding_window]

    def _make_mask(self, num_keys: int, sliding_window: int | None) -> Tensor | None:
        if self.sees_all_keys and (sliding_window is None or num_keys <= sliding_window):
            return None
        at = self.positions.unsqueeze(-1)
        keys = torch.arange(num_keys, device=at.device)
        visible = keys <= at
        if sliding_window is not None:
            visible &= keys > at - sliding_window
        return visible.unsqueeze(1)


class SdpaKernel(AttentionKernel):
    """Gather, then ``F.scaled_dot_product_attention`` with grouped heads."""

    name = "sdpa"
    device_types = frozenset({"cpu", "cuda"})
    supports_sliding_window = True
    supports_softcap = False
    supports_sinks = False
    page_multiple = 1

    def prepare(self, sequences: Sequences, device: torch.device) -> tuple[_Group, ...]:
        decodes: dict[int, list[int]] = {}
        prefills: list[list[int]] = []
        first_rows: list[int] = []
        row = 0
        for index, query_len in enumerate(sequences.query_lens):
            first_rows.append(row)
            row += query_len
            if query_len == 1:
                # Lengths within a factor of two share a call: padding then at most doubles what is read.
                decodes.setdefault(sequences.kv_lens[index].bit_length(), []).append(index)
            else:
                prefills.append([index])
        return tuple(self._group(sequences, members, first_rows, device) for members in (*decodes.values(), *prefills))

    def _group(self, sequences: Sequences, members: list[int], first_rows: list[int], device: torch.device) -> _Group:
        size = sequences.block_size
        used = [-(-sequences.kv_lens[index] // size) for index in members]
        width = max(used)
        blocks = [
            [*sequences.block_tables[index][:count], *[NULL_BLOCK] * (width - count)]
            for index, count in zip(members, used, strict=True)
        ]
        query_len = sequences.query_lens[members[0]]
        rows = [first_rows[index] + offset for index in members for offset in range(query_len)]
        positions = [range(sequences.kv_lens[index] - query_len, sequences.kv_lens[index]) for index in members]
        return _Group(
            rows=torch.tensor(rows, dtype=torch.int64, device=device),
            blocks=torch.tensor(blocks, dtype=torch.int64, device=device),
            positions=torch.tensor([list(each) for each in positions], dtype=torch.int64, device=device),
            sees_all_keys=query_len == 1 and all(sequences.kv_lens[index] == width * size for index in members),
        )

    def forward(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        prepared: tuple[_Group, ...],
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        num_tokens, num_heads, _ = query.shape
        output = query.new_empty(num_tokens, num_heads, value_cache.shape[-1])
        for group in prepared:
            batch, query_len = group.positions.shape
            keys, values = (
                cache[group.blocks].flatten(1, 2).transpose(1, 2) for cache in (key_cache, value_cache)
            )  # [batch, num_kv_heads, padded_len, head_dim]
            queries = query[group.rows].view(batch, query_len, num_heads, -1).transpose(1, 2)
            mask = group.mask(keys.shape[2], sliding_window)
            attended = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=keys.shape[1] != num_heads
            )
            output[group.rows] = attended.transpose(1, 2).flatten(0, 1)
        return output
