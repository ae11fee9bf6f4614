"""Checks GPU memory: allocated at start, released in sleep, allocated again on wake; and the out-of-memory error."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.check import StageContext
from benchmarks.peers.deskmate import GREEDY
from engine import Engine, ModelLoadError
from engine.execution.load import load_model
from engine.runtime.engine_core import EngineCore

GIB = 1024**3


def memory(check: StageContext) -> None:
    """Checks memory at start, asleep, awake, and when it runs out."""
    path = check.model("qwen3-0.6b")
    check.part("asleep and awake", lambda: sleep(check, path))
    check.part("out of memory", lambda: out_of_memory(check, path))


def _free(device: str) -> float:
    if device != "cuda":
        return 0.0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] / GIB


def sleep(check: StageContext, path: Path) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        before = _free(check.device)
        async with Engine(check.settings(path, dtype="bfloat16", gpu_memory_utilization=0.7)) as engine:
            prompt = list(range(10, 200))

            async def reply() -> list[int]:
                stream = engine.complete(prompt, replace(GREEDY, max_tokens=8))
                return [token async for delta in stream for token in delta.token_ids]

            first, serving = await reply(), _free(check.device)
            stats = engine.stats()
            await engine.sleep()
            asleep = _free(check.device)
            await engine.wake()
            assert await reply() == first
            awake = _free(check.device)
        if check.device == "cuda":
            assert asleep > before - 1.0, f"{before - asleep:.1f} GiB stay taken while it sleeps"
            assert abs(awake - serving) < 1.0
        return {
            "free_gib": {"before": before, "serving": serving, "asleep": asleep, "awake": awake},
            "kv_blocks": stats.num_kv_blocks,
            "kv_block_size": stats.kv_block_size,
        }

    return asyncio.run(work())


def out_of_memory(check: StageContext, path: Path) -> dict[str, Any]:
    settings = check.settings(path, dtype="bfloat16", gpu_memory_utilization=0.001, kv_cache_memory=None)
    if check.device != "cuda":
        settings = check.settings(path, dtype="bfloat16", kv_cache_memory=100_000.0)
    said = ""
    try:
        EngineCore(load_model(settings, lambda _stage, _fraction: None), settings)
    except ModelLoadError as error:
        said = str(error)
    assert "Lower" in said or "smaller" in said, said or "it was loaded"
    return {"says": said}
