"""The processor's kernel and the portable one against attention computed one query at a time in fp64."""

from __future__ import annotations

import pytest
import torch

from engine.execution.attention.base import AttentionCall, AttentionKernel, LayerCache, Sequences
from engine.execution.attention.cpu import CpuKernel
from engine.execution.attention.sdpa import SdpaKernel
from testing.attention import make_case

BLOCK = 4
HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 8, 6


KERNELS = pytest.mark.parametrize("kernel", [CpuKernel(), SdpaKernel()], ids=lambda kernel: kernel.name)


@KERNELS
@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize(("softcap", "with_sinks"), [(None, False), (0.7, False), (None, True), (0.7, True)])
@pytest.mark.parametrize("seed", range(6))
def test_matches_plain_attention(
    seed: int, window: int | None, softcap: float | None, with_sinks: bool, kernel: AttentionKernel
) -> None:
    case = make_case(
        seed,
        block_size=BLOCK,
        lengths=[1, 3, 4, 5, 8, 17, 33],
        heads=HEADS,
        kv_heads=KV_HEADS,
        dim=DIM,
        value_dim=VALUE_DIM,
    )
    sinks = torch.randn(HEADS) if with_sinks else None
    expected = case.expected(window, softcap, sinks)
    for got in case.run(kernel, window, softcap, sinks, num_layers=2):
        assert got.shape == (len(case.query), HEADS, VALUE_DIM)
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-6)


@KERNELS
def test_bf16_stays_close_to_fp32(kernel: AttentionKernel) -> None:
    torch.manual_seed(0)
    cache = torch.randn(10, BLOCK, KV_HEADS, DIM)
    query = torch.randn(2, HEADS, DIM)
    sequences = Sequences((1, 1), (9, 6), ((1, 2, 3), (4, 5)), BLOCK)
    prepared = kernel.prepare(sequences, torch.device("cpu"))
    exact, rough = (
        kernel.forward(
            AttentionCall(query.to(dtype), LayerCache(cache.to(dtype), cache.to(dtype)), DIM**-0.5), prepared
        )
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rough.dtype is torch.bfloat16
    assert (rough.float() - exact).norm() / exact.norm() < 1e-2
