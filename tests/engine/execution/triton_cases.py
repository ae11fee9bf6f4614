"""The Triton kernel itself against attention computed one query at a time in fp64; ``test_triton.py`` runs this file.

In Triton's interpreter, which takes the place of the compiler when TRITON_INTERPRET=1 is set before Triton is first
imported, or by hand on a machine with a GPU: ``python -m pytest tests/engine/execution/triton_cases.py``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import EngineSettings, SamplingParams
from engine.execution.attention.base import AttentionCall, LayerCache, Sequences
from engine.execution.attention.triton_paged import Tiles, TritonKernel, TritonStep
from engine.execution.load import load_model
from engine.runtime.engine_core import EngineCore
from testing.attention import SCALE, AttentionCase, make_case
from testing.models import make_model
from testing.reference import Comparison, Reference

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
TILE = 64  #: keys that are read at once
NAN = float("nan")
# A card's exponential is good to 22 bits.
TOLERANCE = {torch.float32: 2e-6 if DEVICE == "cpu" else 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def check(
    case: AttentionCase,
    num_splits: int | None = None,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> None:
    """The kernel agrees, relative to the norm."""
    heads, dtype = case.query.shape[1], case.query.dtype
    sink_scores = torch.randn(heads).to(dtype) if sinks else None
    expected = case.expected(window, softcap, sink_scores)
    on_device = None if sink_scores is None else sink_scores.to(DEVICE)
    (got,) = case.run(TritonKernel(num_splits, min_share=TILE), window, softcap, on_device)
    assert got.dtype is dtype
    assert got.shape == expected.shape
    assert (got.cpu().double() - expected).norm() / expected.norm() < TOLERANCE[dtype]


@pytest.fixture
def uninitialised_is_nan() -> Iterator[None]:
    """What a kernel left out cannot be right by chance."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("uninitialised_is_nan")
@pytest.mark.parametrize("window", [None, 1, 5, 70])
@pytest.mark.parametrize(
    ("seed", "num_splits", "softcap", "sinks"),
    [(5, 1, None, False), (9, 1, 0.7, True), (11, 3, 0.7, False), (3, 2, None, True)],
)
def test_windows_softcap_sinks_and_splits(
    seed: int, num_splits: int, window: int | None, softcap: float | None, sinks: bool
) -> None:
    lengths = [1, 3, 4, 5, 17, TILE - 1, TILE, TILE + 1, 2 * TILE + 9]
    case = make_case(seed, block_size=4, lengths=lengths, value_dim=6, foreign=NAN, device=DEVICE)
    check(case, num_splits, window=window, softcap=softcap, sinks=sinks)


@pytest.mark.parametrize(
    ("block_size", "heads", "kv_heads", "dim", "value_dim"),
    [
        (1, 1, 1, 16, 16),
        (16, 3, 1, 8, 8),
        (16, 4, 4, 80, 80),
        (256, 14, 2, 64, 64),
        (3, 2, 1, 24, 40),
        (16, 2, 1, 40, 24),
        (5, 71, 1, 8, 8),
    ],
)
def test_head_counts_widths_and_block_sizes(
    block_size: int, heads: int, kv_heads: int, dim: int, value_dim: int
) -> None:
    """Groups and widths that are no powers of two are filled up, and what fills them changes nothing."""
    case = make_case(
        block_size,
        block_size=block_size,
        lengths=[1, 15, 16, 17, 40],
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        value_dim=value_dim,
        foreign=NAN,
        device=DEVICE,
    )
    check(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_half_precision(dtype: torch.dtype, num_splits: int) -> None:
    for seed in range(2):
        case = make_case(seed, block_size=16, lengths=[1, 20, 3 * TILE], dtype=dtype, foreign=NAN, device=DEVICE)
        check(case, num_splits, window=[None, 30][seed], softcap=[None, 0.7][seed], sinks=seed == 1)


@pytest.mark.usefixtures("uninitialised_is_nan")
def test_more_splits_than_keys() -> None:
    """Shares without a key take no part."""
    case = make_case(1, block_size=4, lengths=[2, TILE + 1], foreign=NAN, device=DEVICE)
    assert case.sequences.kv_lens == (2, TILE + 1)
    check(case, 8)
    check(case, 8, sinks=True)


def test_blocks_behind_the_window_are_not_looked_at() -> None:
    """They were given back: their place in the table is the null block's, which holds NaN here."""
    window, block_size = 6, 4
    for num_splits in (1, 2):
        case = make_case(3, block_size=block_size, lengths=[9, 40, TILE + 40], foreign=NAN, device=DEVICE)
        tables = []
        geometry = case.sequences
        for query_len, kv_len, table in zip(geometry.query_lens, geometry.kv_lens, geometry.block_tables, strict=True):
            gone = max(0, kv_len - query_len - window + 1) // block_size
            tables.append((*[0] * gone, *table[gone:]))
        assert any(0 in table for table in tables)
        freed = dataclasses.replace(case, sequences=dataclasses.replace(geometry, block_tables=tuple(tables)))
        check(freed, num_splits, window=window)


def test_queries_and_cache_may_be_views() -> None:
    """Queries come as heads before tokens, and layers may lie in one piece of memory."""
    case = make_case(1, block_size=4, lengths=[1, 9, 30], value_dim=6, device=DEVICE)
    query = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    keys = torch.full((len(case.key_cache), 4, 3, 2, 8), NAN, device=DEVICE)[:, :, 1]
    assert not query.is_contiguous()
    assert not keys.is_contiguous()
    keys.copy_(case.key_cache)
    check(dataclasses.replace(case, query=query, key_cache=keys))


def test_large_scores_do_not_overflow() -> None:
    case = make_case(2, block_size=4, lengths=[20, TILE + 20], device=DEVICE)
    loud = dataclasses.replace(case, query=case.query * 300, queries=tuple(query * 300 for query in case.queries))
    for softcap in (None, 30.0):
        check(loud, softcap=softcap)


@pytest.mark.usefixtures("uninitialised_is_nan")
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_a_decode_step_can_be_written_into_another(num_splits: int, with_sinks: bool) -> None:
    """As a CUDA graph needs it: the launches are those of the step that was recorded, at the greatest length."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 40, 4, 2, 8, device=DEVICE).unbind()
    query = torch.randn(3, 4, 8, device=DEVICE)
    sinks = torch.randn(4, device=DEVICE) if with_sinks else None
    table = tuple(range(1, 31))
    kernel = TritonKernel(num_splits, min_share=TILE)
    device = torch.device(DEVICE)
    longest = Sequences((1, 1, 1), (120, 120, 120), (table,) * 3, 4)
    # The last row is a filler without keys.
    shorter = Sequences((1, 1, 1), (70, 9, 0), (table[3:], table[:5], ()), 4)

    call = AttentionCall(query, LayerCache(keys, values), SCALE, sinks=sinks)

    def forward(step: TritonStep) -> torch.Tensor:
        return kernel.forward(call, step)

    expected = forward(kernel.prepare(shorter, device))
    recorded = kernel.prepare(longest, device)
    kernel.refill(recorded, shorter)
    assert isinstance(recorded.decodes, Tiles)
    assert recorded.tiles(16) == [recorded.decodes]
    assert torch.equal(forward(recorded), expected)
    assert expected[:2].abs().min() > 0
    assert torch.equal(expected[2], torch.zeros_like(expected[2]))


@pytest.mark.parametrize(("family", "num_splits"), [("gemma2", 1), ("gpt-oss", 2)])
def test_a_model_says_what_transformers_says(
    family: str, num_splits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several requests at once, prompts in chunks, pages of 4: greedy, in fp32, token for token."""
    path = make_model(tmp_path / family, family, seed=3, eos=False)
    reference = Reference(path)
    model = load_model(EngineSettings(model=str(path), dtype="float32", device=DEVICE), lambda *_progress: None)
    kernel = TritonKernel(num_splits, min_share=TILE)
    monkeypatch.setattr("engine.execution.capacity.select_kernel", lambda *_asked: (kernel, 4))
    core = EngineCore(
        model, EngineSettings(max_model_len=128, num_kv_blocks=200, max_num_seqs=4, max_batched_tokens=40)
    )
    assert core.kernel is kernel
    prompts = [
        [(7 * index + 3 + number) % model.vocab_size for index in range(length)]
        for number, length in enumerate((1, 70))
    ]
    replies: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=6)
        replies[str(number)] = []
        core.add(core.request_processor.process(str(number), prompt, core.request_processor.resolve(prompt, params)))
    while core.has_work:
        for delta in core.step().deltas:
            replies[delta.request_id] += delta.token_ids
    comparison = Comparison()
    for number, prompt in enumerate(prompts):
        comparison.check(replies[str(number)], reference.greedy(prompt, 6), context=f"{family}, {number}")
    assert comparison.tokens == 12
    assert comparison.ties == 0
