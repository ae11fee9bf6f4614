"""Measures what holding replies to a JSON schema costs: decode speed with and without it, and compiling schemas.

    .venv/bin/python -m benchmarks.structured [--model DIR] [--chats 1 8 32] [--repeats 5]

Decodes the same number of tokens for each chat, in turn free and held to a schema, in one engine: once to one whose
strings leave the model its choice (so that hardly a token is dictated), and once to one that dictates most of the text.
Reports the ratio of tokens per second and the milliseconds more for a step. Without ``--model`` it makes model M (see
:mod:`benchmarks.models`). Before, it compiles 200 schemas (see :mod:`benchmarks.schemas`), each for the first time.
Writes JSON to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from benchmarks import machine
from benchmarks.models import make_m
from benchmarks.result_files import write_result
from benchmarks.schemas import make_schemas
from engine import Engine, EngineSettings, SamplingParams, StructuredOutput, StructureKind

TEXTS = {"type": "array", "items": {"type": "string", "maxLength": 400}, "minItems": 1000}
"""Holds every token, and leaves the model nearly all of its vocabulary in each string."""
RECORD = {
    "type": "object",
    "properties": {
        "customer_number": {"type": "integer", "minimum": 100, "maximum": 999},
        "delivery_status": {"enum": ["delivered", "in transit", "returned to sender"]},
        "is_gift_wrapped": {"type": "boolean"},
        "expected_delivery_date": {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-[012][1-8]$"},
    },
    "required": ["customer_number", "delivery_status", "is_gift_wrapped", "expected_delivery_date"],
    "additionalProperties": False,
}
RECORDS = {"type": "array", "items": RECORD, "minItems": 1000}
"""Dictates most of the text, as forms do."""


async def decode(engine: Engine, chats: int, tokens: int, structure: StructuredOutput | None) -> float:
    """Returns the tokens per second of some chats at once, after each has its first token."""
    params = SamplingParams(temperature=0.8, max_tokens=tokens, ignore_eos=True, structured=structure)
    times: list[tuple[float, float]] = []

    async def one(index: int) -> None:
        first = 0.0
        async for _ in engine.complete([2 + index] * 16, params):
            first = first or perf_counter()
        times.append((first, perf_counter()))

    await asyncio.gather(*(one(index) for index in range(chats)))
    begin, end = max(first for first, _ in times), max(last for _, last in times)
    return chats * (tokens - 1) / (end - begin)


async def measure_speed(
    engine: Engine, schema: dict[str, Any], chats: Sequence[int], tokens: int, repeats: int
) -> list[dict[str, Any]]:
    held = StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(schema))
    rows = []
    for count in chats:
        pairs = []
        for turn in range(repeats + 1):
            pair = (await decode(engine, count, tokens, None), await decode(engine, count, tokens, held))
            if turn:  # the first one warms up
                pairs.append(pair)
        free, with_schema = (median(column) for column in zip(*pairs, strict=True))
        ratio = median(held_speed / free_speed for free_speed, held_speed in pairs)
        more_ms = 1000 * median(count / held_speed - count / free_speed for free_speed, held_speed in pairs)
        print(
            f"{count:2} chats: {free:7.1f} tokens/s free, {with_schema:7.1f} held, ratio {ratio:.3f}, "
            f"{more_ms:.2f} ms more for a step",
            flush=True,
        )
        rows.append({"chats": count, "free": free, "held": with_schema, "ratio": ratio, "ms_more_a_step": more_ms})
    return rows


async def measure_compiling(engine: Engine, count: int) -> dict[str, float]:
    """Prepares one conversation for each schema; the first use makes the tokenizer's trie and is left out."""
    times = []
    for schema in [TEXTS, *make_schemas(count)]:
        structure = StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(schema))
        begin = perf_counter()
        await engine.prepare([{"role": "user", "content": "hi"}], SamplingParams(structured=structure))
        times.append(1000 * (perf_counter() - begin))
    cuts = quantiles(times[1:], n=100)
    result = {"schemas": count, "p50_ms": cuts[49], "p95_ms": cuts[94], "max_ms": max(times[1:])}
    print(f"compiling: p50 {cuts[49]:.1f} ms, p95 {cuts[94]:.1f} ms, longest {max(times[1:]):.1f} ms")
    return result


async def run(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    settings = EngineSettings(_env_file=None, model=str(model), max_num_seqs=max(args.chats))
    async with Engine(settings) as engine:
        compiling = await measure_compiling(engine, args.schemas)
        result: dict[str, Any] = {"compiling": compiling}
        for name, schema in (("speed", TEXTS), ("speed_dictated", RECORDS)):
            print("free strings:" if schema is TEXTS else "mostly dictated text:")
            result[name] = await measure_speed(engine, schema, args.chats, args.tokens, args.repeats)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="default: model M")
    parser.add_argument("--chats", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=96, help="of each reply")
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    about = machine.describe()
    mark = machine.CpuMark.now()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or make_m(Path(folder) / "M")
        result = asyncio.run(run(args, model))
    about["others_cpu_share"] = round(mark.others_share(), 3)
    write_result({"machine": about, "model": model.name, **result}, "structured")


if __name__ == "__main__":
    main()
