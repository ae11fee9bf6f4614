"""The int8 KV cache: its error, the C++ decoder and transformers' path on it, copies, its size, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import EngineSettings, ModelLoadError
from engine.execution.attention.base import AttentionCall, AttentionKernel, Sequences
from engine.execution.attention.cpu import CpuKernel
from engine.execution.attention.int8_cache import (
    Int8LayerCache,
    check_int8_cache,
    check_kv_cache_dtype,
    int8_bytes,
    quantize,
)
from engine.execution.attention.sdpa import SdpaKernel
from engine.execution.load import load_model
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from engine.scheduling.cache_layout import LayerShape
from testing.attention import plain_attention
from testing.core_requests import GREEDY, MAX_LEN, ReaderRecord, add, finish
from testing.models import make_model
from testing.native import needs_compiler
from tests.engine.execution.test_native import Sequence, error

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SHAPE = LayerShape(num_kv_heads=2, head_dim=32, value_head_dim=16, sliding_window=None)
LENGTH = 150


@pytest.fixture(scope="module", params=["qwen3", "mistral-window"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = make_model(tmp_path_factory.mktemp("models") / request.param, request.param, seed=3, eos=False)
    return load(path)


def load(path: Path) -> LoadedModel:
    settings = EngineSettings(model=str(path), dtype="float32", device="cpu", kv_cache_dtype="int8")
    return load_model(settings, lambda _stage, _fraction: None)


def test_quantization_is_off_by_at_most_half_a_step() -> None:
    heads = torch.randn(50, 3, 64) * torch.logspace(-6, 6, 50).view(-1, 1, 1)
    numbers, scales = quantize(heads)
    assert bool(((numbers * scales.unsqueeze(-1) - heads).abs() <= 0.5001 * scales.unsqueeze(-1)).all())
    torch.testing.assert_close(scales, heads.abs().amax(-1) / 127)


def test_zeros_stay_zeros_and_what_is_not_finite_is_not_a_number() -> None:
    heads = torch.zeros(3, 1, 16)
    heads[1, 0, 3], heads[2, 0, 3] = torch.inf, torch.nan
    numbers, scales = quantize(heads)
    assert not numbers[0].any()
    assert scales[:, 0].isnan().tolist() == [False, True, True]


def filled(slots: Tensor, keys: Tensor, values: Tensor, num_blocks: int, block_size: int) -> Int8LayerCache:
    cache = Int8LayerCache.allocate(SHAPE, num_blocks, block_size, CPU)
    cache.store(slots, keys, values)
    return cache


def test_a_cache_returns_what_was_stored_in_each_slot() -> None:
    slots = torch.randperm(4 * 32)[:70]
    keys, values = torch.randn(70, 2, 32), torch.randn(70, 2, 16)
    read = filled(slots, keys, values, 4, 32).read(slice(0, 4), torch.float32)
    for found, stored in zip(read, (keys, values), strict=True):
        numbers, scales = quantize(stored)
        assert torch.equal(found.flatten(0, 1)[slots], numbers * scales.unsqueeze(-1))


@pytest.mark.parametrize("kernel", [CpuKernel(), SdpaKernel()], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("blocks", [(1, 2, 3), (3, 0, 2)], ids=["contiguous", "scattered"])
@pytest.mark.parametrize(("window", "softcap", "sinks"), [(None, None, False), (20, 0.7, True)])
def test_kernels_read_it(
    kernel: AttentionKernel, blocks: tuple[int, ...], window: int | None, softcap: float | None, sinks: bool
) -> None:
    slots = torch.tensor([blocks[at // 16] * 16 + at % 16 for at in range(40)])
    keys, values, query = torch.randn(40, 2, 32), torch.randn(40, 2, 16), torch.randn(7, 4, 32)
    cache = filled(slots, keys, values, 4, 16)
    sink = torch.randn(4) if sinks else None
    prepared = kernel.prepare(Sequences((7,), (40,), (blocks,), 16), CPU)
    found = kernel.forward(AttentionCall(query, cache, 0.3, window, softcap, sink), prepared)
    exact = [numbers * scales.unsqueeze(-1) for numbers, scales in map(quantize, (keys, values))]
    expected = plain_attention(query, exact[0], exact[1], 0.3, window, softcap, sink)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)


def in_int8(model: LoadedModel) -> Sequence:
    """One text in an int8 cache."""
    return Sequence(model, LENGTH, kv_cache_dtype="int8")


@needs_compiler
def test_the_decoder_says_nearly_the_same_as_with_its_own_dtype(model: LoadedModel) -> None:
    exact = Sequence(model, LENGTH).logits(LENGTH)
    whole = in_int8(model).logits(LENGTH)
    assert 0 < error(whole, exact) < 0.05
    assert error(in_int8(model).logits(*range(1, LENGTH + 1)), whole) < 0.005
    assert torch.equal(in_int8(model).logits(64, 81, LENGTH), whole)


@needs_compiler
def test_a_chunk_s_keys_and_values_are_stored_as_those_of_single_tokens(model: LoadedModel) -> None:
    """The first layer's depend on nothing else."""
    chunk, single = in_int8(model), in_int8(model)
    chunk.logits(LENGTH)
    single.logits(*range(1, LENGTH + 1))
    for one, other in zip(chunk.decoder._caches[0].tensors, single.decoder._caches[0].tensors, strict=True):
        assert torch.equal(one, other)
        assert one.any()


def replies(model: LoadedModel, prompts: list[list[int]], *, together: bool, **chosen: int) -> list[ReaderRecord]:
    given = {"max_model_len": MAX_LEN, "max_num_seqs": 4, "max_batched_tokens": 16, "num_kv_blocks": 60, **chosen}
    settings = EngineSettings.model_validate({**given, "device": "cpu", "dtype": "float32", "kv_cache_dtype": "int8"})
    core, records = EngineCore(model, settings), []
    for name, prompt in enumerate(prompts):
        add(core, str(name), prompt, GREEDY)
        if not together:
            records.append(finish(core))
    if together:
        records.append(finish(core))
    return records


@needs_compiler
def test_prefix_hits_chunks_and_preemption_change_no_token(model: LoadedModel) -> None:
    stem = [(7 * at + 3) % 200 for at in range(29)]  # not whole blocks: a hit copies the last one
    prompts = [stem, [*stem, 5], [*stem[:20], 9, 8, 7], [*stem, 5, 6, 7]]
    alone = [replies(model, [prompt], together=False)[0].tokens["0", 0] for prompt in prompts]
    after = [record.tokens[str(name), 0] for name, record in enumerate(replies(model, prompts, together=False))]
    (crowded,) = replies(model, prompts, together=True, num_kv_blocks=9)
    assert after == alone
    assert [crowded.tokens[str(name), 0] for name in range(4)] == alone


def test_it_takes_half_the_memory_and_the_scales() -> None:
    cache = Int8LayerCache.allocate(SHAPE, 5, 16, CPU)
    size = sum(tensor.nbytes for tensor in cache.tensors)
    assert size == 5 * 16 * int8_bytes(SHAPE) == 5 * 16 * 2 * (32 + 16 + 8)


@pytest.mark.parametrize(
    ("dtype", "device", "words"), [("fp8", "cpu", "no attention kernel"), ("int8", "cuda", "CPUs only")]
)
def test_what_no_kernel_reads_is_refused(dtype: str, device: str, words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        check_kv_cache_dtype(dtype, torch.device(device))


@pytest.mark.parametrize(
    ("width", "block_size", "words"), [(24, 16, "24 wide"), (528, 16, "528 wide"), (32, 8, "got 8")]
)
def test_shapes_that_do_not_fit_are_refused(width: int, block_size: int, words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        check_int8_cache((LayerShape(1, width, width, None),), "a model", block_size)


def test_an_unknown_dtype_is_no_setting() -> None:
    with pytest.raises(ValueError, match="kv_cache_dtype"):
        EngineSettings.model_validate({"kv_cache_dtype": "int4"})
