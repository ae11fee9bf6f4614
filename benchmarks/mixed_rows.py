"""Measures what one chat with parameters of its own costs the plain chats that are decoded in the same steps.

    .venv/bin/python -m benchmarks.mixed_rows [--model guide] [--chats 32] [--tokens 96] [--repeats 5]

Decodes plain chats beside one more chat: with penalties, with log-probabilities, held to a JSON schema, or with an
adapter; each time right after a run beside a plain one. Reports the tokens per second of the plain ones and the ratio
of the two runs, as medians; repetitions in which other programs used more than 8 % of the CPU are left out. Writes JSON
to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import machine
from benchmarks.interleaving import MAX_OTHERS_CPU_SHARE
from benchmarks.model_files import ROOT
from benchmarks.models import make_m, make_s
from benchmarks.result_files import write_result
from benchmarks.structured import TEXTS
from engine import Engine, EngineSettings, SamplingParams, StructuredOutput, StructureKind
from testing.lora import make_adapter

ADAPTER = "random"


def special_params(base: SamplingParams) -> dict[str, SamplingParams]:
    """Returns the parameters of the one chat, by what is special about it."""
    schema = StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(TEXTS))
    return {
        "penalties": replace(base, repetition_penalty=1.1, frequency_penalty=0.2),
        "log-probabilities": replace(base, logprobs=5),
        "schema": replace(base, structured=schema),
        "adapter": base,
    }


async def decode(
    engine: Engine, chats: int, base: SamplingParams, special: SamplingParams, adapter: str | None
) -> tuple[float, float]:
    """Returns the tokens per second of the plain chats together, and of the one, while all are decoded."""
    events: list[tuple[float, int, int]] = []

    async def one(index: int) -> tuple[float, float]:
        params = base if index else special
        first = 0.0
        async for delta in engine.complete([20 + index] * 16, params, adapter=None if index else adapter):
            now = perf_counter()
            first = first or now
            events.append((now, index, len(delta.token_ids)))
        return first, now

    times = await asyncio.gather(*(one(index) for index in range(chats)))
    begin, end = max(first for first, _ in times), min(last for _, last in times)
    counted = [(index, count) for at, index, count in events if begin < at <= end]
    plain = sum(count for index, count in counted if index)
    return plain / (end - begin), (sum(count for _, count in counted) - plain) / (end - begin)


async def run(args: argparse.Namespace, model: Path, adapter: Path) -> list[dict[str, Any]]:
    settings = EngineSettings(
        _env_file=None,
        model=str(model),
        max_num_seqs=args.chats,
        quantization=args.quantization,
        lora=(f"{ADAPTER}={adapter}",),
    )
    base = SamplingParams(temperature=0.8, max_tokens=args.tokens, ignore_eos=True)
    kinds = {name: params for name, params in special_params(base).items() if name in args.kinds}
    pairs: dict[str, list[tuple[tuple[float, float], tuple[float, float]]]] = {name: [] for name in kinds}
    async with Engine(settings) as engine:
        for turn in range(args.repeats + 1):
            for name, params in kinds.items():
                mark = machine.CpuMark.now()
                alone = await decode(engine, args.chats, base, base, None)
                beside = await decode(engine, args.chats, base, params, ADAPTER if name == "adapter" else None)
                if turn and mark.others_share() <= MAX_OTHERS_CPU_SHARE:  # the first one warms up
                    pairs[name].append((alone, beside))
    result = []
    for name, measured in pairs.items():
        if not measured:
            print(f"{name}: other programs were busy in each repetition")
            continue
        row = {
            "beside": name,
            "repetitions": len(measured),
            "plain_alone": median(alone[0] for alone, _ in measured),
            "plain_beside": median(beside[0] for _, beside in measured),
            "ratio": median(beside[0] / alone[0] for alone, beside in measured),
            "own": median(beside[1] for _, beside in measured),
        }
        print(
            f"beside {name}: {row['plain_beside']:.0f} tokens/s of the plain chats, {row['plain_alone']:.0f} without; "
            f"ratio {row['ratio']:.3f} (median of {len(measured)}); its own {row['own']:.0f}",
            flush=True,
        )
        result.append(row)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="guide", help="guide, S, M or a folder")
    parser.add_argument("--quantization", default="none", help="int8 or int4")
    parser.add_argument("--kinds", nargs="+", default=["penalties", "log-probabilities", "schema", "adapter"])
    parser.add_argument("--chats", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96, help="of each reply")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--name", default="mixed-rows", help="of the result file, after the date")
    args = parser.parse_args()
    about = machine.describe()
    with tempfile.TemporaryDirectory() as folder:
        makers = {"S": make_s, "M": make_m}
        if args.model in makers:
            model = makers[args.model](Path(folder) / args.model)
        else:
            model = ROOT / "models" / "guide" if args.model == "guide" else Path(args.model)
        adapter = make_adapter(Path(folder) / "adapter", model, rank=8, std=0.01)
        rows = asyncio.run(run(args, model, adapter))
    result = {"machine": about, "model": model.name, "chats": args.chats, "tokens": args.tokens, "rows": rows}
    write_result(result, args.name)


if __name__ == "__main__":
    main()
