"""Our own paged kernel in Triton: when it is taken, how its work is shared out, and the kernel itself.

The kernel runs in Triton's interpreter and is compiled for cards that are not here, each in a process of its own:
Triton reads TRITON_INTERPRET when it is first imported. Nothing here has run on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.execution.attention.base import Sequences
from engine.execution.attention.flash2 import Flash2Kernel
from engine.execution.attention.flash3 import Flash3Kernel
from engine.execution.attention.selection import select_kernel
from engine.execution.attention.triton_paged import TritonKernel, TritonStep, splits_for
from engine.execution.attention.varlen import VarlenKernel
from engine.model.attention_hook import AttentionNeeds

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
CASES = Path(__file__).parent


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("cases", "interpret"), [("triton_cases.py", "1"), ("triton_compile_cases.py", "0")])
def test_the_kernel_itself(cases: str, interpret: str, tmp_path: Path) -> None:
    """Equal to attention in fp64, and to transformers in whole models; and it compiles."""
    if importlib.util.find_spec("triton") is None:
        pytest.fail(
            "The package triton is not installed, which this test needs; on Linux `make test-full` installs it."
        )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES / cases)],
        env={**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout


# -- when it is taken ---------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Has all that the kernel needs but for a FlashAttention; triton itself is a stand-in."""
    find_spec = importlib.util.find_spec
    installed = {"triton": SimpleNamespace(), "flash_attn": None, "flash_attn_interface": None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, package=None: installed.get(name) or find_spec(name, package)
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: (8, 6))
    monkeypatch.setitem(sys.modules, "engine.execution.attention.triton_kernels", SimpleNamespace())
    for kernel in (Flash3Kernel, Flash2Kernel):
        monkeypatch.setattr(kernel, "unavailable_reason", lambda _device: "not here")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    monkeypatch.delenv("CC", raising=False)
    return monkeypatch


@pytest.fixture
def python_headers(machine: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    machine.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    header = tmp_path / "Python.h"
    header.touch()
    return header


HALF = AttentionNeeds(dtype=torch.bfloat16)
CAPPED_WITH_SINKS = AttentionNeeds(dtype=torch.float16, softcap=True, sinks=True, sliding_window=True)


@pytest.mark.parametrize(
    ("needs", "block_size", "chosen"),
    [
        (HALF, None, ("varlen", 256)),  # PyTorch's own is faster
        (HALF, 16, ("triton", 16)),  # but not for small pages,
        (HALF, 7, ("triton", 7)),
        (CAPPED_WITH_SINKS, None, ("triton", 16)),  # nor for these,
        (AttentionNeeds(dtype=torch.float32), None, ("triton", 16)),
        (AttentionNeeds(dtype=torch.bfloat16, head_dim=192, value_head_dim=128), None, ("triton", 16)),
        (AttentionNeeds(dtype=torch.bfloat16, head_dim=512, value_head_dim=512), None, ("sdpa", 16)),
        (AttentionNeeds(dtype=torch.float64), None, ("sdpa", 16)),
    ],
)
def test_it_serves_what_flash_attention_does_not(
    machine: pytest.MonkeyPatch,
    python_headers: Path,
    needs: AttentionNeeds,
    block_size: int | None,
    chosen: tuple[str, int],
) -> None:
    machine.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, block_table: None)
    machine.setattr(VarlenKernel, "__init__", lambda self: None)
    kernel, size = select_kernel("auto", needs, CUDA, block_size)
    assert (kernel.name, size) == chosen


def test_why_it_cannot_run(machine: pytest.MonkeyPatch, python_headers: Path) -> None:
    """Taken away one after another: each is said, and alone keeps the kernel from being chosen."""
    assert TritonKernel.unavailable_reason(CUDA) is None
    assert TritonKernel.unavailable_reason(CPU) == "it runs on cuda, not on cpu"
    python_headers.unlink()
    assert "python3-dev" in (TritonKernel.unavailable_reason(CUDA) or "")
    machine.setattr(shutil, "which", lambda _name: None)
    assert "C compiler" in (TritonKernel.unavailable_reason(CUDA) or "")
    machine.setattr(torch.cuda, "get_device_capability", lambda _device=None: (7, 5))
    assert "(found 7.5)" in (TritonKernel.unavailable_reason(CUDA) or "")
    machine.setattr(importlib.util, "find_spec", lambda *_name: None)
    assert TritonKernel.unavailable_reason(CUDA) == "the package triton is not installed"
    assert select_kernel("auto", CAPPED_WITH_SINKS, CUDA, None)[0].name == "sdpa"


# -- how its work is shared out -----------------------------------------------------------------------------


def prepare(query_lens: tuple[int, ...], kv_lens: tuple[int, ...], block_size: int = 4) -> TritonStep:
    tables = tuple(tuple(range(1, 2 + length // block_size)) for length in kv_lens)
    return TritonKernel().prepare(Sequences(query_lens, kv_lens, tables, block_size), CPU)


@pytest.mark.parametrize("num_queries", [1, 3, 16, 64])
def test_every_query_is_served_once(machine: pytest.MonkeyPatch, num_queries: int) -> None:
    query_lens = (1, 40, 1, 2, 16, 17)
    step = prepare(query_lens, (9, 40, 1, 30, 16, 80))
    decodes, chunks = step.tiles(num_queries)
    assert decodes.num_queries == 1
    served = [
        (sequence, query)
        for tiles in (decodes, chunks)
        for sequence, start in zip(tiles.sequence.tolist(), tiles.start.tolist(), strict=True)
        for query in range(start, min(start + tiles.num_queries, query_lens[sequence]))
    ]
    assert sorted(served) == [(sequence, query) for sequence in range(6) for query in range(query_lens[sequence])]
    assert step.tiles(num_queries)[1] is chunks  # the next layer finds them made


def test_what_is_prepared(machine: pytest.MonkeyPatch) -> None:
    step = prepare((1, 3), (5, 8))
    assert step.query_starts.tolist() == [0, 1, 4]
    assert step.kv_lens.tolist() == [5, 8]
    assert step.block_table.tolist() == [[1, 2], [1, 2]]  # a block that is not needed yet is left out
    assert prepare((1, 1), (9, 3)).block_table.tolist() == [[1, 2, 3], [1, 0, 0]]
    assert all(tensor.dtype is torch.int32 for tensor in (step.query_starts, step.kv_lens, step.block_table))


@pytest.mark.parametrize(
    ("kv_lens", "kv_heads", "window", "splits"),
    [
        ((32_768,), 8, None, 33),  # one long chat fills a card of 132 multiprocessors, twice
        ((1_000,), 8, None, 3),  # a short one is not cut to pieces
        ((200,), 8, None, 1),
        ((32_768,), 8, 1_024, 4),  # as the window lets it see
        ((1_000_000,), 1, None, 64),
        ((8_192,) * 8, 8, None, 4),
        ((8_192,) * 64, 8, None, 1),  # many chats fill the card anyway
        ((32_768, *(100,) * 63), 8, None, 27),  # but not when one is much longer
        ((0, 0), 8, None, 1),
    ],
)
def test_keys_are_split_when_the_card_would_idle(
    machine: pytest.MonkeyPatch, kv_lens: tuple[int, ...], kv_heads: int, window: int | None, splits: int
) -> None:
    (decodes,) = prepare((1,) * len(kv_lens), kv_lens).tiles(16)
    assert splits_for(132, kv_heads, decodes, window, 256) == splits


def test_a_chunk_looks_at_no_more_keys_than_it_may(machine: pytest.MonkeyPatch) -> None:
    (chunks,) = prepare((40, 17), (1_040, 17)).tiles(16)
    assert chunks.max_keys == 1_040
    assert chunks.num_keys == 1_016 + 1_032 + 1_040 + 16 + 17
