"""Prints how fast one reply is decoded: tokens per second, and CPU microseconds per token; the best of several replies.

It needs the engine only, so that it can be measured where the benchmarks are not installed:

python -m benchmarks.decode_speed models/guide
docker compose run --rm -T --no-deps app python - models/guide <benchmarks/decode_speed.py
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import perf_counter, process_time

from engine import Engine, EngineSettings, SamplingParams

PROMPT = list(range(20, 84))
NEW_TOKENS = 128
REPLIES = 20
MEASURE_SECONDS = 5.0
"""Of a model with which so many replies take longer, fewer are measured, at least three."""


async def measure(model: str) -> dict[str, float]:
    """Returns the figures of the least disturbed reply, from its first token to its last."""
    settings = EngineSettings(_env_file=None, model=model, device="cpu", enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=NEW_TOKENS)
    rates, cpu = [], []
    async with Engine(settings) as engine:
        begin = perf_counter()
        for number in range(REPLIES):
            if number >= 3 and perf_counter() - begin > MEASURE_SECONDS:
                break
            tokens = 0
            async for delta in engine.complete(PROMPT, params):
                last, last_cpu = perf_counter(), process_time()
                if tokens == 0:
                    first, first_cpu, alone = last, last_cpu, len(delta.token_ids)
                tokens += len(delta.token_ids)
            rates.append((tokens - alone) / (last - first))
            cpu.append((last_cpu - first_cpu) / (tokens - alone) * 1e6)
    return {"tokens_per_s": round(max(rates), 1), "cpu_us_per_token": round(min(cpu), 1)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1]))))
