"""The memory of a cache that is taken before chats need it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.machine import resident_bytes
from engine import Delta, Engine, EngineSettings, SamplingParams
from engine.execution import memory_ahead
from engine.execution.memory_ahead import AHEAD_TOKENS, MAX_AHEAD_BYTES, PIECE_BYTES, MemoryAhead
from engine.runtime.engine_core import EngineCore
from engine.scheduling.block_pool import BlockPool
from testing.models import make_model
from testing.waiting import eventually

BLOCK_SIZE = 16
BLOCK_BYTES = 8192
NUM_AHEAD = AHEAD_TOKENS // BLOCK_SIZE
Pieces = list[tuple[int, int]]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    """Address and size of each piece."""
    pieces: Pieces = []
    monkeypatch.setattr(memory_ahead, "populate", lambda address, size: pieces.append((address, size)) or True)
    return pieces


def make_tensors(num_blocks: int, *block_bytes: int) -> list[torch.Tensor]:
    return [torch.from_numpy(np.zeros((num_blocks, size), dtype=np.uint8)) for size in block_bytes]


def bytes_of(pieces: Pieces, tensor: torch.Tensor) -> int:
    """How many of a tensor's bytes were taken: from its first one on, each once."""
    mine = sorted(piece for piece in pieces if 0 <= piece[0] - tensor.data_ptr() < tensor.nbytes)
    end = tensor.data_ptr()
    for address, size in mine:
        assert address == end
        end += size
    assert end <= tensor.data_ptr() + tensor.nbytes
    return end - tensor.data_ptr()


def test_a_long_prompt_ahead_of_the_used_blocks_in_every_tensor(taken: Pieces) -> None:
    tensors = make_tensors(4 * NUM_AHEAD, BLOCK_BYTES, BLOCK_BYTES // 8)
    ahead = MemoryAhead(tensors, BLOCK_SIZE)
    for num_used in (1, 1, NUM_AHEAD // 2, 2 * NUM_AHEAD):
        while ahead.take_piece(num_used):
            assert max(size for _, size in taken) <= PIECE_BYTES
        for tensor, block_bytes in zip(tensors, (BLOCK_BYTES, BLOCK_BYTES // 8), strict=True):
            blocks = bytes_of(taken, tensor) // block_bytes
            assert num_used + NUM_AHEAD <= blocks < num_used + NUM_AHEAD + PIECE_BYTES // BLOCK_BYTES


def test_no_more_than_the_cache(taken: Pieces) -> None:
    tensors = make_tensors(NUM_AHEAD // 2 + 3, BLOCK_BYTES)
    ahead = MemoryAhead(tensors, BLOCK_SIZE)
    while ahead.take_piece(NUM_AHEAD // 2):
        pass
    assert bytes_of(taken, tensors[0]) == tensors[0].nbytes


def test_large_blocks_are_taken_one_by_one_and_up_to_a_limit(taken: Pieces) -> None:
    size = 4 * PIECE_BYTES
    tensors = make_tensors(NUM_AHEAD, size)  # 2 GiB of addresses, none of it in memory
    ahead = MemoryAhead(tensors, BLOCK_SIZE)
    while ahead.take_piece(1):
        pass
    assert [length for _, length in taken] == [size] * (MAX_AHEAD_BYTES // size + 1)


def test_a_system_that_cannot_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()
    monkeypatch.setattr(memory_ahead, "populate", lambda address, size: bool(next(calls)))
    ahead = MemoryAhead(make_tensors(NUM_AHEAD, BLOCK_BYTES), BLOCK_SIZE)
    assert not ahead.take_piece(1)
    assert not ahead.take_piece(1)
    assert next(calls) == 1


@pytest.mark.parametrize("tensors", [[], [torch.zeros((2 * NUM_AHEAD, BLOCK_BYTES), device="meta")]])
def test_nothing_without_tensors_or_on_another_device(tensors: list[torch.Tensor], taken: Pieces) -> None:
    assert not MemoryAhead(tensors, BLOCK_SIZE).take_piece(1)
    assert taken == []


def test_it_is_in_memory_and_keeps_what_it_holds() -> None:
    tensors = make_tensors(NUM_AHEAD, 1 << 17)
    tensors[0][NUM_AHEAD // 2, 5] = 7
    ahead = MemoryAhead(tensors, BLOCK_SIZE)
    before = resident_bytes()
    if not ahead.take_piece(1):
        pytest.skip("this system cannot do it")
    while ahead.take_piece(1):
        pass
    assert resident_bytes() - before > tensors[0].nbytes - (4 << 20)
    assert int(tensors[0].sum()) == 7


@pytest.mark.parametrize("kv_cache_memory", [None, 0.1])
async def test_an_idle_engine_takes_it_unless_it_has_all(
    tmp_path: Path, taken: Pieces, kv_cache_memory: float | None
) -> None:
    async with Engine(make_settings(tmp_path, kv_cache_memory=kv_cache_memory)) as engine:
        await read(engine)
        if kv_cache_memory is None:
            await eventually(lambda: sum(size for _, size in taken) > AHEAD_TOKENS)
    assert bool(taken) == (kv_cache_memory is None)


async def test_requests_and_the_end_come_before_idle_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = count()
    monkeypatch.setattr(EngineCore, "use_idle_time", lambda core: bool(next(pieces) + 1))  # it never ends
    async with asyncio.timeout(120), Engine(make_settings(tmp_path)) as engine:
        for _ in range(3):
            await eventually(partial(_has_grown, pieces, next(pieces)))
            assert (await read(engine))[-1].is_last


def test_a_pool_knows_how_far_it_was_used() -> None:
    pool = BlockPool(20, BLOCK_SIZE, contiguous=True)
    assert pool.num_touched == 1  # the null block
    first = pool.allocate(2)
    assert pool.num_touched == max(first) + 1
    far = pool.allocate_contiguous(3, spare=4)
    assert pool.num_touched == max(far) + 1
    pool.release(first)
    pool.release(far)
    assert pool.num_touched == max(far) + 1


def _has_grown(pieces: Iterator[int], before: int) -> bool:
    return next(pieces) > before + 10


def make_settings(folder: Path, **more: float | None) -> EngineSettings:
    return EngineSettings(model=str(make_model(folder / "model")), dtype="float32", **more)  # type: ignore[arg-type]


async def read(engine: Engine) -> list[Delta]:
    params = SamplingParams(max_tokens=5, ignore_eos=True, temperature=0)
    return [delta async for delta in engine.complete([11, 12, 13], params)]
