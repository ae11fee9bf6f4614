"""A thousand requests are abandoned at random moments; the pool stays whole and the engine goes on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from engine import Engine, EngineSettings, SamplingParams
from testing.models import make_model

PROBE = list(range(40, 80))
SURVIVORS = [PROBE, PROBE[:20] + PROBE[:18], PROBE[::-1]]


async def reply(engine: Engine, prompt: list[int], params: SamplingParams) -> list[int]:
    return [token async for delta in engine.complete(prompt, params) for token in delta.token_ids]


async def abandon(engine: Engine, rng: random.Random) -> None:
    """Begin a reply and walk away: before it is read, while it waits, while the prompt is read, in its middle."""
    prompt = PROBE[: rng.randint(1, 40)] + [rng.randrange(300) for _ in range(rng.randint(0, 20))]
    params = SamplingParams(max_tokens=rng.choice([3, 40]), ignore_eos=True, seed=rng.randrange(99))
    if rng.random() < 0.5:
        task = asyncio.create_task(reply(engine, prompt, params))
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.02]))
        task.cancel()
        await asyncio.wait([task])
        return
    to_read = rng.randint(0, 4)
    stream = engine.complete(prompt, params)
    async for _ in stream:
        to_read -= 1
        if to_read < 0:
            break
    await stream.aclose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("caching", "aborts"),
    [(True, 300), pytest.param(True, 1000, marks=pytest.mark.full), pytest.param(False, 300, marks=pytest.mark.full)],
)
async def test_hundreds_of_aborts_leave_the_pool_whole(tmp_path: Path, caching: bool, aborts: int) -> None:
    settings = EngineSettings(
        model=str(make_model(tmp_path / "model", "qwen3", eos=False)),
        dtype="float32",
        max_model_len=100,
        num_kv_blocks=2 * 25 + 1,  # room for two of the longest: the others put each other out
        kv_block_size=4,
        max_num_seqs=8,
        max_batched_tokens=24,
        max_waiting=128,  # for all that come at once, however late the engine hears that they have left
        enable_prefix_caching=caching,
    )
    rng = random.Random(int(caching))
    greedy = SamplingParams(temperature=0, max_tokens=55, ignore_eos=True)
    async with Engine(settings) as engine:
        expected = [await reply(engine, prompt, greedy) for prompt in SURVIVORS]
        readers = asyncio.Semaphore(30)

        async def visitor() -> None:
            async with readers:
                await abandon(engine, rng)

        while engine.stats().requests_finished["abort"] < aborts:
            survivors = [asyncio.create_task(reply(engine, prompt, greedy)) for prompt in SURVIVORS]
            await asyncio.gather(*(visitor() for _ in range(100)))
            assert await asyncio.gather(*survivors) == expected

        assert engine.health().ready, engine.health().error
        assert await engine.drain(30)
        stats = engine.stats()
        assert (stats.num_requests_running, stats.num_requests_waiting, stats.kv_cache_usage) == (0, 0, 0)
        assert stats.num_preemptions > 0
        assert (stats.cached_prompt_tokens > 0) == caching
        assert engine._core is not None
        engine._core.check()
