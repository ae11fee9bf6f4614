"""Prints the tokens per second of one reply's decodes, best of several. It needs the engine only.

python -m benchmarks.decode_speed models/guide
docker compose run --rm -T --no-deps app python - models/guide <benchmarks/decode_speed.py
"""

from __future__ import annotations

import asyncio
import sys
from time import perf_counter

from engine import Engine, EngineSettings, SamplingParams

PROMPT = list(range(20, 84))
NEW_TOKENS = 128
REPLIES = 20


async def measure(model: str) -> float:
    """Returns tokens per second, from the first token to the last, of the fastest reply: the least disturbed one."""
    settings = EngineSettings(_env_file=None, model=model, device="cpu", enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=NEW_TOKENS)
    rates = []
    async with Engine(settings) as engine:
        for _ in range(REPLIES):
            tokens, first, last = 0, 0.0, 0.0
            async for delta in engine.complete(PROMPT, params):
                last = perf_counter()
                if tokens == 0:
                    first, alone = last, len(delta.token_ids)
                tokens += len(delta.token_ids)
            rates.append((tokens - alone) / (last - first))
    return max(rates)


if __name__ == "__main__":
    print(f"{asyncio.run(measure(sys.argv[1])):.1f}")
