"""The paged kernel against attention computed one query at a time in fp64."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from engine.attention.base import Sequences
from engine.attention.sdpa import SdpaKernel

BLOCK = 4
HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 8, 6


def plain_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """``query [q, H, D]`` are the last positions of ``keys [n, Hkv, D]``; returns ``[q, H, Dv]`` in fp64."""
    length, count = keys.shape[0], query.shape[0]
    out = torch.zeros(count, HEADS, VALUE_DIM, dtype=torch.float64)
    for row in range(count):
        last = length - count + row
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = keys[first : last + 1, kv_head].double() @ query[row, head].double() * scale
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            if sinks is not None:
                scores = torch.cat([scores, sinks[head : head + 1].double()])
            out[row, head] = scores.softmax(0)[: last + 1 - first] @ values[first : last + 1, kv_head].double()
    return out


@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize(("softcap", "with_sinks"), [(None, False), (0.7, False), (None, True), (0.7, True)])
@pytest.mark.parametrize("seed", range(6))
def test_matches_plain_attention(seed: int, window: int | None, softcap: float | None, with_sinks: bool) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kv_lens = [rng.choice([1, 3, 4, 5, 8, 17, 33]) for _ in range(rng.randint(1, 7))]
    query_lens = [rng.choice([1, 1, rng.randint(1, length)]) for length in kv_lens]
    free = list(range(1, 100))
    if seed % 2:
        rng.shuffle(free)  # else blocks lie together
    tables = [tuple(free.pop(0) for _ in range(-(-length // BLOCK) + rng.randint(0, 2))) for length in kv_lens]

    extra = {"softcap": softcap, "sinks": torch.randn(HEADS) if with_sinks else None}
    key_cache = torch.full((100, BLOCK, KV_HEADS, DIM), 7.0)  # what other requests left there
    value_cache = torch.full((100, BLOCK, KV_HEADS, VALUE_DIM), 7.0)
    expected, queries = [], []
    for length, count, table in zip(kv_lens, query_lens, tables, strict=True):
        keys, values = torch.randn(length, KV_HEADS, DIM), torch.randn(length, KV_HEADS, VALUE_DIM)
        for position in range(length):
            key_cache[table[position // BLOCK], position % BLOCK] = keys[position]
            value_cache[table[position // BLOCK], position % BLOCK] = values[position]
        queries.append(torch.randn(count, HEADS, DIM))
        expected.append(plain_attention(queries[-1], keys, values, 0.3, window, **extra))

    kernel = SdpaKernel()
    device = torch.device("cpu")
    prepared = kernel.prepare(Sequences(tuple(query_lens), tuple(kv_lens), tuple(tables), BLOCK), device)
    packed = torch.cat(queries)
    for _layer in range(2):  # what was prepared serves every layer of a step
        got = kernel.forward(packed, key_cache, value_cache, prepared, scale=0.3, sliding_window=window, **extra)
        assert got.shape == (sum(query_lens), HEADS, VALUE_DIM)
        torch.testing.assert_close(got.double(), torch.cat(expected), rtol=0, atol=2e-6)


def test_bf16_stays_close_to_fp32() -> None:
    torch.manual_seed(0)
    cache = torch.randn(10, BLOCK, KV_HEADS, DIM)
    query = torch.randn(2, HEADS, DIM)
    sequences = Sequences((1, 1), (9, 6), ((1, 2, 3), (4, 5)), BLOCK)
    kernel = SdpaKernel()
    prepared = kernel.prepare(sequences, torch.device("cpu"))
    options = {"scale": 1 / math.sqrt(DIM), "sliding_window": None}
    exact = kernel.forward(query, cache, cache, prepared, **options)
    rough = kernel.forward(query.bfloat16(), cache.bfloat16(), cache.bfloat16(), prepared, **options)
    assert rough.dtype is torch.bfloat16
    assert (rough.float() - exact).norm() / exact.norm() < 1e-2
