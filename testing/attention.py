"""Test cases for attention kernels: random sequences in a paged cache, with reference results in fp64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.attention.base import AttentionCall, AttentionKernel, LayerCache, Sequences

SCALE = 0.3


def plain_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Computes attention one query at a time in fp64.

    Args:
        query: ``[q, H, D]``, for the last ``q`` positions of ``keys``.
        keys: ``[n, Hkv, D]``.
        values: ``[n, Hkv, Dv]``.

    Returns:
        ``[q, H, Dv]``.
    """
    length, count, heads = keys.shape[0], *query.shape[:2]
    out = torch.zeros(count, heads, values.shape[-1], dtype=torch.float64)
    for row in range(count):
        last = length - count + row
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(heads):
            kv_head = head // (heads // keys.shape[1])
            scores = keys[first : last + 1, kv_head].double() @ query[row, head].double() * scale
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            if sinks is not None:
                scores = torch.cat([scores, sinks[head : head + 1].double()])
            out[row, head] = scores.softmax(0)[: last + 1 - first] @ values[first : last + 1, kv_head].double()
    return out


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A packed step over a cache that also holds other requests' rows."""

    sequences: Sequences
    query: Tensor  #: ``[num_tokens, H, D]``
    key_cache: Tensor  #: ``[num_blocks, block_size, Hkv, D]``
    value_cache: Tensor  #: ``[num_blocks, block_size, Hkv, Dv]``
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def expected(self, window: int | None, softcap: float | None = None, sinks: Tensor | None = None) -> Tensor:
        """Returns the reference result ``[num_tokens, H, Dv]`` in fp64."""
        parts = zip(self.queries, self.keys, self.values, strict=True)
        return torch.cat([plain_attention(*part, SCALE, window, softcap, sinks) for part in parts])

    def run(
        self,
        kernel: AttentionKernel,
        window: int | None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        *,
        num_layers: int = 1,
    ) -> list[Tensor]:
        """Runs a kernel on the case once per layer; one prepared state must serve all layers."""
        prepared = kernel.prepare(self.sequences, self.query.device)
        call = AttentionCall(self.query, LayerCache(self.key_cache, self.value_cache), SCALE, window, softcap, sinks)
        return [kernel.forward(call, prepared) for _layer in range(num_layers)]


def make_case(
    seed: int,
    *,
    block_size: int,
    lengths: Sequence[int],
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 8,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    foreign: float = 7.0,
) -> AttentionCase:
    """Makes a case of up to seven sequences, decodes and prompt chunks mixed.

    Args:
        lengths: lengths that a sequence may have, tokens.
        foreign: value in the cache rows of other requests.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    value_dim = value_dim or dim
    kv_lens = [rng.choice(lengths) for _ in range(rng.randint(1, 7))]
    query_lens = [rng.choice([1, 1, rng.randint(1, length)]) for length in kv_lens]
    room = [-(-length // block_size) + rng.randint(0, 2) for length in kv_lens]
    num_blocks = 1 + sum(room) + 3
    free = list(range(1, num_blocks))
    if seed % 2:
        rng.shuffle(free)  # otherwise blocks are contiguous
    tables = [tuple(free.pop(0) for _ in range(count)) for count in room]
    key_cache = torch.full((num_blocks, block_size, kv_heads, dim), foreign, dtype=dtype)
    value_cache = torch.full((num_blocks, block_size, kv_heads, value_dim), foreign, dtype=dtype)
    queries, all_keys, all_values = [], [], []
    for length, count, table in zip(kv_lens, query_lens, tables, strict=True):
        keys = torch.randn(length, kv_heads, dim).to(dtype)
        values = torch.randn(length, kv_heads, value_dim).to(dtype)
        for position in range(length):
            key_cache[table[position // block_size], position % block_size] = keys[position]
            value_cache[table[position // block_size], position % block_size] = values[position]
        queries.append(torch.randn(count, heads, dim).to(dtype))
        all_keys.append(keys)
        all_values.append(values)
    return AttentionCase(
        sequences=Sequences(tuple(query_lens), tuple(kv_lens), tuple(tables), block_size),
        query=torch.cat(queries).to(device),
        key_cache=key_cache.to(device),
        value_cache=value_cache.to(device),
        queries=tuple(queries),
        keys=tuple(all_keys),
        values=tuple(all_values),
    )
