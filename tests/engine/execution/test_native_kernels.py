"""The C++ kernels against slow references, compiled for each instruction set that this processor has."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from engine.execution.native import build
from engine.execution.native.decoder import _Layer, _Model
from testing.native import needs_compiler

SOURCE = Path(__file__).with_name("native_kernels.cpp")
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
HAS_AVX2 = HAS_AVX512 or torch.backends.cpu.get_cpu_capability() == "AVX2"

INSTRUCTION_SETS = [
    pytest.param("-march=native", id="native"),
    pytest.param(
        "-march=x86-64-v4",
        id="avx512",
        marks=[pytest.mark.full, pytest.mark.skipif(not HAS_AVX512, reason="this CPU has no AVX-512")],
    ),
    pytest.param(
        "-march=x86-64-v3",
        id="avx2",
        marks=[pytest.mark.full, pytest.mark.skipif(not HAS_AVX2, reason="this CPU has no AVX2")],
    ),
    pytest.param("", id="baseline", marks=pytest.mark.full),
]

pytestmark = [needs_compiler, pytest.mark.slow]


@pytest.fixture(scope="module", params=INSTRUCTION_SETS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels, compiled for an instruction set."""
    target = tmp_path_factory.mktemp("kernels") / "kernels.so"
    options = [option for option in build.OPTIONS if not option.startswith("-march")]
    march = [request.param] if request.param else []
    include = f"-I{build.SOURCE.parent}"
    subprocess.run(
        [build.find_compiler(), *options, *march, include, str(SOURCE), "-o", str(target)],
        check=True,
        capture_output=True,
    )
    code = ctypes.CDLL(str(target))
    code.rounds_to_bfloat16.restype = ctypes.c_bool
    return code


class Case(NamedTuple):
    """Queries of a chunk that follows ``position`` earlier tokens."""

    num_queries: int
    position: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int = 0
    block_size: int = 16
    softcap: float = 0.0


CASES = [
    Case(1, 0, 1, 1, 16),
    Case(5, 0, 4, 2, 64),
    Case(33, 7, 6, 2, 48),
    Case(200, 0, 4, 4, 80),
    Case(130, 385, 2, 1, 128),
    Case(17, 700, 8, 1, 32, block_size=32),
    Case(9, 700, 4, 2, 64),
    Case(12, 600, 4, 4, 48, window=300, block_size=8),
    Case(90, 300, 3, 3, 64, window=40),
    Case(150, 513, 4, 2, 16, window=300, block_size=8),
    Case(64, 256, 5, 1, 256, window=257),
    Case(50, 290, 4, 2, 256, window=128, softcap=5.0),
]


def random_cases(count: int) -> Iterator[Case]:
    dice = torch.Generator().manual_seed(5)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=dice))

    for _ in range(count):
        kv_heads = draw(1, 3)
        yield Case(
            num_queries=draw(1, 200),
            position=draw(0, 400) * draw(0, 1),
            num_heads=kv_heads * draw(1, 5),
            num_kv_heads=kv_heads,
            head_dim=16 * draw(1, 9),
            window=draw(1, 300) * draw(0, 1),
            block_size=2 ** draw(2, 5),
        )


class Chunk:
    """A case's random queries, keys and values, in a cache whose blocks are in no order."""

    def __init__(self, case: Case, dtype: torch.dtype, seed: int = 0) -> None:
        self.case = case
        dice = torch.Generator().manual_seed(seed)
        length = case.position + case.num_queries
        num_blocks = -(-length // case.block_size)
        self.blocks = torch.randperm(num_blocks + 1, generator=dice)[:num_blocks].int()
        self.queries = 2 * torch.randn(case.num_queries, case.num_heads, case.head_dim, generator=dice)
        self.keys, self.values = (
            torch.randn(length, case.num_kv_heads, case.head_dim, generator=dice).to(dtype) for _ in range(2)
        )

    def attended(self, kernels: ctypes.CDLL, position: int | None = None, kernel: str = "attend") -> Tensor:
        """What C++ attends, from the query at ``position`` on, as a chunk (``attend``) or as decodes (``decode``).

        What no query may see is NaN: unused blocks and slots, and tokens that have left the window of the first query.
        """
        case = self.case
        start = case.position if position is None else position
        shape = (len(self.blocks) + 1, case.block_size, case.num_kv_heads, case.head_dim)
        caches = []
        for numbers in (self.keys, self.values):
            cache = torch.full(shape, torch.nan, dtype=numbers.dtype)
            first = max(0, start + 1 - case.window) if case.window else 0
            for at in range(first, len(numbers)):
                cache[self.blocks[at // case.block_size], at % case.block_size] = numbers[at]
            caches.append(cache)
        layer, model = _Layer(), _Model()
        layer.keys, layer.values = (cache.data_ptr() for cache in caches)
        layer.window = case.window
        model.num_heads, model.num_kv_heads = case.num_heads, case.num_kv_heads
        model.head_dim, model.block_size = case.head_dim, case.block_size
        layer.attention_scale, layer.softcap = case.head_dim**-0.5, case.softcap
        queries = self.queries[start - case.position :].contiguous()
        output = torch.full_like(queries, 7.0)
        attend: Any = getattr(kernels, f"{kernel}_{str(self.keys.dtype).removeprefix('torch.')}")
        attend(
            ctypes.byref(model),
            ctypes.byref(layer),
            ctypes.c_void_p(self.blocks.data_ptr()),
            ctypes.c_int64(start),
            ctypes.c_int64(len(queries)),
            ctypes.c_void_p(queries.data_ptr()),
            ctypes.c_void_p(output.data_ptr()),
        )
        return output

    def expected(self) -> Tensor:
        """One query after another, in float64."""
        case = self.case
        group = case.num_heads // case.num_kv_heads
        rows = []
        for index, query in enumerate(self.queries.double()):
            stop = case.position + index + 1
            start = max(0, stop - case.window) if case.window else 0
            keys, values = (part[start:stop].double().repeat_interleave(group, 1) for part in (self.keys, self.values))
            scores = torch.einsum("hd,khd->hk", query, keys) * case.head_dim**-0.5
            if case.softcap:
                scores = case.softcap * (scores / case.softcap).tanh()
            rows.append(torch.einsum("hk,khd->hd", scores.softmax(-1), values))
        return torch.stack(rows)


def largest_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm(dim=-1).div(expected.norm(dim=-1)).max())


@pytest.mark.parametrize("kernel", ["attend", "decode"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", [*CASES, *random_cases(12)], ids=str)
def test_attention_of_a_chunk(kernels: ctypes.CDLL, case: Case, dtype: torch.dtype, kernel: str) -> None:
    chunk = Chunk(case, dtype)
    rounds = dtype is torch.bfloat16 and kernels.rounds_to_bfloat16()
    found = chunk.attended(kernels, kernel=kernel)
    if rounds:
        chunk.queries = chunk.queries.bfloat16().float()
    assert largest_error(found, chunk.expected()) < (1e-2 if rounds else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", [CASES[4], CASES[6], CASES[7]], ids=str)
def test_chunks_of_a_text_do_not_change_a_bit(kernels: ctypes.CDLL, case: Case, dtype: torch.dtype) -> None:
    chunk = Chunk(case, dtype)
    whole = chunk.attended(kernels)
    for index in (1, 60, case.num_queries - 1):
        assert torch.equal(chunk.attended(kernels, case.position + index), whole[index:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("kernel", ["attend", "decode"])
def test_what_is_not_finite_reaches_only_the_queries_that_see_it(
    kernels: ctypes.CDLL, dtype: torch.dtype, number: float, window: int, kernel: str
) -> None:
    case = Case(130, 385, 4, 2, 64, window=window)
    clean, broken = Chunk(case, dtype), Chunk(case, dtype)
    token, head = 440, 1
    broken.keys[token, head, 3] = broken.values[token, head, 3] = number
    before, after = clean.attended(kernels, kernel=kernel), broken.attended(kernels, kernel=kernel)
    sees = torch.arange(385, 515) >= token
    if window:
        sees &= torch.arange(385, 515) < token + window
    assert torch.equal(after[~sees], before[~sees])
    assert torch.equal(after[:, :2], before[:, :2])  # the heads of the other kv head
    if number != number:
        assert after[sees][:, 2:].isnan().all()


def test_a_query_that_is_not_a_number_stays_alone(kernels: ctypes.CDLL) -> None:
    case = Case(50, 3, 4, 2, 64)
    clean, broken = Chunk(case, torch.bfloat16), Chunk(case, torch.bfloat16)
    broken.queries[20, 1, 5] = torch.nan
    before, after = clean.attended(kernels), broken.attended(kernels)
    assert after[20, 1].isnan().all()
    after[20, 1] = before[20, 1]
    assert torch.equal(after, before)


def test_probabilities_are_powers_of_e(kernels: ctypes.CDLL) -> None:
    x = torch.cat([torch.linspace(-86, 0, 100_000), torch.tensor([0.0, -0.0, -1e-9, -1e30, -torch.inf, torch.nan])])
    x = torch.nn.functional.pad(x, (0, -len(x) % 16))
    output = torch.empty_like(x)
    kernels.probabilities(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(len(x)), ctypes.c_void_p(output.data_ptr()))
    torch.testing.assert_close(output.double(), x.double().exp(), rtol=6e-6, atol=2e-38, equal_nan=True)
    near = x >= -5
    torch.testing.assert_close(output[near].double(), x[near].double().exp(), rtol=5e-7, atol=0.0)
    assert output[x == 0].unique().tolist() == [1.0]
    assert output[x == -torch.inf].tolist() == [0.0]
