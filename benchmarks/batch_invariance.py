"""Measures the cost of batch invariance: the same chats with and without it on the same machine.

    python -m benchmarks.batch_invariance [--repeats 3] [--model FOLDER]

Measures tokens per second of all chats together, prompts included, in bfloat16.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks import machine, models
from benchmarks.model_files import ROOT
from benchmarks.peers.protocol import Chat
from benchmarks.result_files import write_result
from engine import Engine, EngineSettings, SamplingParams


def workload(vocab_size: int) -> dict[str, list[Chat]]:
    rng = random.Random(7)

    def chat(length: int, new_tokens: int) -> Chat:
        return Chat(tuple(rng.randrange(10, vocab_size - 10) for _ in range(length)), new_tokens)

    one = [chat(128, 128)]
    return {"1 chat": one, "8 chats": [chat(rng.randint(32, 256), rng.randint(64, 128)) for _ in range(8)]}


async def rate(engine: Engine, chats: Sequence[Chat]) -> float:
    """Returns new tokens per second over the whole time, prompts included."""

    async def read(chat: Chat) -> None:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=chat.new_tokens)
        async for _delta in engine.complete(chat.prompt, params):
            pass

    begin = perf_counter()
    await asyncio.gather(*map(read, chats))
    return sum(chat.new_tokens for chat in chats) / (perf_counter() - begin)


async def measure(path: Path, repeats: int, *, invariant: bool) -> dict[str, list[float]]:
    """Returns, per workload, the tokens per second of every measured repetition."""
    settings = EngineSettings(
        model=str(path), device="cpu", dtype="bfloat16", enable_prefix_caching=False, batch_invariant=invariant
    )
    async with Engine(settings) as engine:
        rates: dict[str, list[float]] = {}
        for work, chats in workload(engine.info.vocab_size).items():
            runs = [await rate(engine, chats) for _ in range(repeats + 1)]
            rates[work] = runs[1:]  # the first one warms up
        return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", type=Path, help="model folder; default: model S and models/guide")
    args = parser.parse_args()
    about = machine.describe()
    mark = machine.CpuMark.now()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [args.model] if args.model else [ROOT / "models" / "guide", models.make_s(Path(folder) / "s")]
        for path in paths:
            plain, fixed = (asyncio.run(measure(path, args.repeats, invariant=choice)) for choice in (False, True))
            for work, rates in plain.items():
                cost = median(rates) / median(fixed[work])
                print(
                    f"{path.name} {work}: {median(rates):.0f} tok/s, invariant {median(fixed[work]):.0f}: {cost:.2f}x"
                )
                rows.append({"model": path.name, "work": work, "plain": rates, "invariant": fixed[work], "cost": cost})
    about["others_cpu_share"] = round(mark.others_share(), 3)
    write_result({"machine": about, "rows": rows}, "batch_invariance")


if __name__ == "__main__":
    main()
