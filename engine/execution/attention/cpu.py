"""The CPU attention kernel: PyTorch's scaled dot-product attention, one sequence after another.

If the blocks of a sequence are contiguous, its keys and values are read in place; otherwise they are gathered first,
which stays in the CPU cache because it is done for one sequence at a time. Attention is memory-bound here, so nothing
is padded, and keys outside a sliding window are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.execution.attention.base import AttentionCall, AttentionKernel, LayerCache, Sequences
from engine.execution.attention.int8_cache import Int8LayerCache
from engine.execution.attention.sdpa import dense_attention, visible_keys


@dataclass(frozen=True, slots=True)
class _Span:
    """The keys that a chunk attends to under one sliding window."""

    first: int  #: row of the first key, in the flattened cache or in the gathered blocks
    blocks: Tensor | None  #: int64 ``[num_blocks]``: blocks to gather; None if they are contiguous
    num_keys: int
    is_causal: bool  #: as many queries as keys, and each query sees the keys up to its own
    mask: Tensor | None  #: boolean ``[query_len, num_keys]``; None if ``is_causal`` or every key is visible

    def take(self, cache: LayerCache, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns keys and values, ``[1, num_kv_heads, num_keys, head_dim]``; in ``dtype`` from a quantized cache."""
        if isinstance(cache, Int8LayerCache):
            first_block, row = (0, self.first) if self.blocks is not None else divmod(self.first, cache.block_size)
            last_block = first_block - (-(row + self.num_keys) // cache.block_size)
            keys, values = cache.read(slice(first_block, last_block) if self.blocks is None else self.blocks, dtype)
            return self._cut(keys, row), self._cut(values, row)
        return self._view(cache.keys), self._view(cache.values)

    def _cut(self, blocks: Tensor, row: int) -> Tensor:
        return blocks.flatten(0, 1)[row : row + self.num_keys].transpose(0, 1).unsqueeze(0)

    def _view(self, cache: Tensor) -> Tensor:
        if self.blocks is not None:
            cache = cache.index_select(0, self.blocks)
        _, row, head, _ = cache.stride()
        size = (1, cache.shape[2], self.num_keys, cache.shape[3])
        return cache.as_strided(size, (row, head, row, 1), cache.storage_offset() + self.first * row)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One sequence's share of a step."""

    rows: slice  #: of the packed queries
    num_keys: int  #: keys up to the last query, itself included
    blocks: tuple[int, ...]
    block_size: int
    spans: dict[int | None, _Span] = field(default_factory=dict)  #: by sliding window, made once per step

    def span(self, sliding_window: int | None) -> _Span:
        if sliding_window not in self.spans:
            self.spans[sliding_window] = self._make_span(sliding_window)
        return self.spans[sliding_window]

    def _make_span(self, sliding_window: int | None) -> _Span:
        query_len = self.rows.stop - self.rows.start
        first_query = self.num_keys - query_len
        first_key = 0 if sliding_window is None else max(0, first_query + 1 - sliding_window)
        block, row = divmod(first_key, self.block_size)
        blocks = self.blocks[block : -(-self.num_keys // self.block_size)]
        is_contiguous = blocks == tuple(range(blocks[0], blocks[0] + len(blocks)))
        num_keys = self.num_keys - first_key
        is_causal = query_len == num_keys > 1 and (sliding_window is None or num_keys <= sliding_window)
        mask = None
        if query_len > 1 and not is_causal:
            positions = torch.arange(first_query, self.num_keys)
            mask = visible_keys(positions, torch.arange(first_key, self.num_keys), sliding_window)
        return _Span(
            first=blocks[0] * self.block_size + row if is_contiguous else row,
            blocks=None if is_contiguous else torch.tensor(blocks, dtype=torch.int64),
            num_keys=num_keys,
            is_causal=is_causal,
            mask=mask,
        )


class CpuKernel(AttentionKernel):
    """Attention sequence by sequence, in place if a sequence's blocks are contiguous."""

    name = "cpu"
    device_types = frozenset({"cpu"})
    supports_sliding_window = True
    supports_softcap = True
    supports_sinks = True
    page_multiple = 1
    reads_int8_cache = True
    prefers_contiguous = True

    def prepare(self, sequences: Sequences, _device: torch.device) -> tuple[_Chunk, ...]:
        chunks = []
        row = 0
        for query_len, kv_len, table in zip(
            sequences.query_lens, sequences.kv_lens, sequences.block_tables, strict=True
        ):
            chunks.append(_Chunk(slice(row, row + query_len), kv_len, table, sequences.block_size))
            row += query_len
        return tuple(chunks)

    def forward(self, call: AttentionCall, prepared: tuple[_Chunk, ...]) -> Tensor:
        query, cache = call.query, call.cache
        packed = query.transpose(0, 1).unsqueeze(0)
        output = query.new_empty(*query.shape[:2], cache.value_head_dim)
        for chunk in prepared:
            span = chunk.span(call.sliding_window)
            keys, values = span.take(cache, query.dtype)
            attended = dense_attention(
                call, packed[:, :, chunk.rows], keys, values, span.mask, is_causal=span.is_causal
            )
            output[chunk.rows] = attended[0].transpose(0, 1)
        return output
