"""Paged attention in Triton: for Ampere and later GPUs where no FlashAttention fits.

Supports what FlashAttention does not: attention sinks, keys and values of different size, fp32, pages of any size.
The kernels are in :mod:`engine.execution.attention.triton_kernels`. The tests run them in Triton's interpreter and
compile them for several GPUs; they have not run on a GPU yet, and their tile sizes were never tuned on one.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from engine.device.host_to_device import overwrite, to_device
from engine.device.triton_support import triton_unavailable_reason
from engine.execution.attention.base import AttentionCall, AttentionKernel, Sequences
from engine.execution.attention.flash import refill_table
from engine.scheduling.block_pool import NULL_BLOCK

PROGRAMS_PER_PROCESSOR = 2
"""Programs per multiprocessor of the GPU that splitting the keys aims for."""
MIN_SHARE = 256
"""Fewest keys of a split; merging smaller splits would cost more than it saves."""
MAX_SPLITS = 64
"""Most splits of a sequence's keys."""
KEY_TILE_BYTES = 16 * 1024
"""Bytes of a tile of keys, and of a tile of values; the pipeline holds a few of each in shared memory, which is 99 KiB
on small GPUs."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Assigns queries to programs: each tile has up to ``num_queries`` queries of one sequence, from ``start`` on."""

    sequence: Tensor  #: int32 ``[num_tiles]``
    start: Tensor  #: int32 ``[num_tiles]``, counted from the sequence's first query in this step
    num_queries: int
    num_keys: int  #: keys that all tiles read, added up, apart from a sliding window
    max_keys: int  #: most keys that one tile reads

    @classmethod
    def of(cls, sequences: Sequences, members: list[int], num_queries: int, device: torch.device) -> Tiles:
        """Splits the queries of the sequences in ``members`` into tiles. Each of them has at least one query."""
        tiles: list[tuple[int, int]] = []
        keys: list[int] = []
        for index in members:
            query_len, kv_len = sequences.query_lens[index], sequences.kv_lens[index]
            for start in range(0, query_len, num_queries):
                tiles.append((index, start))
                keys.append(kv_len - query_len + min(start + num_queries, query_len))
        return cls(
            sequence=_int32([sequence for sequence, _start in tiles], device),
            start=_int32([start for _sequence, start in tiles], device),
            num_queries=num_queries,
            num_keys=sum(keys),
            max_keys=max(keys),
        )


@dataclass(frozen=True, slots=True)
class TritonStep:
    """One step, made once and read by every layer.

    If no sequence has more than one query, every tensor's shape follows from the number of sequences and the width of
    the block table, and no layer adds tensors, so a CUDA graph may hold them. A graph's launch grid is that of the
    lengths it was recorded with, which serves all shorter lengths.
    """

    query_starts: Tensor  #: int32 ``[batch + 1]``: first row of each sequence in the packed queries, then their number
    kv_lens: Tensor  #: int32 ``[batch]``
    block_table: Tensor  #: int32 ``[batch, pages]``, padded with the null block
    decodes: Tiles | None  #: of the sequences with one query
    sequences: Sequences
    _chunks: dict[int, Tiles] = field(default_factory=dict)

    def tiles(self, num_queries: int) -> list[Tiles]:
        """Returns the tiles of the decodes, and those of prompt chunks with ``num_queries`` queries per tile."""
        found = [] if self.decodes is None else [self.decodes]
        chunks = [index for index, length in enumerate(self.sequences.query_lens) if length > 1]
        if chunks:
            if num_queries not in self._chunks:
                self._chunks[num_queries] = Tiles.of(self.sequences, chunks, num_queries, self.kv_lens.device)
            found.append(self._chunks[num_queries])
        return found


class TritonKernel(AttentionKernel):
    """Paged FlashAttention with split keys.

    Args:
        num_splits: most splits of the keys, up to 64; None for as many as fill the GPU.
        min_share: fewest keys of a split, a multiple of 64.
    """

    name = "triton"
    device_types = frozenset({"cuda"})
    supports_sliding_window = True
    supports_softcap = True
    supports_sinks = True
    page_multiple = 1
    dtypes = frozenset({torch.float16, torch.bfloat16, torch.float32})
    max_head_dim = 256
    supports_graphs = True

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return super().unavailable_reason(device) or triton_unavailable_reason(device)

    def __init__(self, num_splits: int | None = None, min_share: int = MIN_SHARE) -> None:
        self._kernels: Any = importlib.import_module("engine.execution.attention.triton_kernels")
        self._num_splits = num_splits
        self._min_share = min_share

    def prepare(self, sequences: Sequences, device: torch.device) -> TritonStep:
        pages = [-(-length // sequences.block_size) for length in sequences.kv_lens]
        width = max(pages)
        table = [
            [*blocks[:count], *[NULL_BLOCK] * (width - count)]
            for blocks, count in zip(sequences.block_tables, pages, strict=True)
        ]
        decodes = [index for index, length in enumerate(sequences.query_lens) if length == 1]
        return TritonStep(
            query_starts=_int32([0, *accumulate(sequences.query_lens)], device),
            kv_lens=_int32(list(sequences.kv_lens), device),
            block_table=_int32(table, device),
            decodes=Tiles.of(sequences, decodes, 1, device) if decodes else None,
            sequences=sequences,
        )

    def refill(self, prepared: TritonStep, sequences: Sequences) -> None:
        step = self.prepare(sequences, torch.device("cpu"))
        assert set(sequences.query_lens) == {1}
        overwrite(prepared.query_starts, step.query_starts)
        overwrite(prepared.kv_lens, step.kv_lens)
        refill_table(prepared.block_table, step.block_table)

    def forward(self, call: AttentionCall, prepared: TritonStep) -> Tensor:
        query, key_cache, value_cache = call.query, call.cache.keys, call.cache.values
        assert query.stride(-1) == key_cache.stride(-1) == value_cache.stride(-1) == 1
        num_tokens, num_heads, head_dim = query.shape
        block_size, num_kv_heads, value_dim = value_cache.shape[1:]
        group = num_heads // num_kv_heads
        output = query.new_empty(num_tokens, num_heads, value_dim)
        with torch.cuda.device_of(query):
            for tiles in prepared.tiles(queries_per_tile(group, query.dtype)):
                num_tiles = len(tiles.sequence)
                num_splits = self._num_splits or splits_for(
                    _processors(query.device), num_kv_heads, tiles, call.sliding_window, self._min_share
                )
                partial_output = partial_log_sum = output  # placeholders, never read
                if num_splits > 1:
                    parts = (num_tiles * tiles.num_queries, num_heads, num_splits)
                    partial_output = query.new_empty((*parts, value_dim), dtype=torch.float32)
                    partial_log_sum = query.new_empty(parts, dtype=torch.float32)
                self._kernels.attend[(num_tiles, num_kv_heads, num_splits)](
                    output,
                    partial_output,
                    partial_log_sum,
                    query,
                    key_cache,
                    value_cache,
                    output if call.sinks is None else call.sinks,
                    prepared.query_starts,
                    prepared.kv_lens,
                    prepared.block_table,
                    tiles.sequence,
                    tiles.start,
                    call.scale,
                    call.softcap or 1.0,
                    *query.stride()[:2],
                    *key_cache.stride()[:3],
                    *value_cache.stride()[:3],
                    prepared.block_table.stride(0),
                    num_splits,
                    **tile_options(group, tiles.num_queries, head_dim, value_dim, query.dtype),
                    BLOCK_SIZE=block_size,
                    WINDOW=call.sliding_window or 0,
                    SOFTCAP=bool(call.softcap),
                    SINKS=call.sinks is not None,
                    MIN_SHARE=self._min_share,
                    SPLIT=num_splits > 1,
                    UPCAST=query.device.type == "cpu" and query.dtype is torch.bfloat16,  # else the interpreter errs
                )
                if num_splits > 1:
                    self._kernels.merge_splits[(num_tiles, tiles.num_queries, num_heads)](
                        output,
                        partial_output,
                        partial_log_sum,
                        prepared.query_starts,
                        tiles.sequence,
                        tiles.start,
                        num_splits,
                        VALUE_DIM=value_dim,
                        VALUE_DIM_PADDED=_power_of_two(value_dim),
                        QUERIES=tiles.num_queries,
                        SPLITS_PADDED=MAX_SPLITS,
                    )
        return output


def queries_per_tile(group: int, dtype: torch.dtype) -> int:
    """Returns the number of a chunk's queries in a tile that holds ``group`` heads of each query."""
    return max(1, (32 if dtype is torch.float32 else 64) // group)


def tile_options(group: int, num_queries: int, head_dim: int, value_dim: int, dtype: torch.dtype) -> dict[str, int]:
    """Returns the tile sizes of a program, as :func:`engine.execution.attention.triton_kernels.attend` names them."""
    padded = _power_of_two(head_dim), _power_of_two(value_dim)
    rows = _power_of_two(group * num_queries)
    return {
        "GROUP": group,
        "QUERIES": num_queries,
        "ROWS": rows,
        "KEYS": min(64, max(16, KEY_TILE_BYTES // (max(padded) * dtype.itemsize))),
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "HEAD_DIM_PADDED": padded[0],
        "VALUE_DIM_PADDED": padded[1],
        "num_warps": 8 if rows * max(padded) * dtype.itemsize > 8192 or dtype is torch.float32 else 4,
        "num_stages": 2,
        "enable_fp_fusion": True,  # the old default; newer versions of Triton require it to be set
    }


def splits_for(num_processors: int, num_kv_heads: int, tiles: Tiles, window: int | None, min_share: int) -> int:
    """Returns the number of splits for the keys of the longest sequence; shorter ones get as many or fewer.

    The load is balanced if each program has ``num_keys * num_kv_heads / (PROGRAMS_PER_PROCESSOR * num_processors)``
    keys. So a long chat among short ones is split, and equally long chats are not if there are enough of them.
    """
    max_keys, num_keys = tiles.max_keys, tiles.num_keys
    if window is not None:
        max_keys = min(max_keys, window + tiles.num_queries - 1)
        num_keys = min(num_keys, max_keys * len(tiles.sequence))
    wanted = PROGRAMS_PER_PROCESSOR * num_processors * max_keys // max(num_keys * num_kv_heads, 1)
    return max(min(wanted, max_keys // min_share, MAX_SPLITS), 1)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _power_of_two(number: int) -> int:
    """Returns the next power of two, at least 16, which tensor cores need."""
    return max(16, 1 << (number - 1).bit_length())


def _int32(values: list[int] | list[list[int]], device: torch.device) -> Tensor:
    return to_device(values, torch.int32, device)
