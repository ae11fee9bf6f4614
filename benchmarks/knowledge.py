"""Measures the knowledge base: encoding chunks, and searching 200,000 of them by meaning.

    .venv/bin/python -m benchmarks.knowledge              # all of it: a few minutes
    .venv/bin/python -m benchmarks.knowledge --scale 0.1  # a tenth of the chunks

Encodes 2,000 chunks of about 250 tokens with all-MiniLM-L6-v2 (``testing/minilm.py``), then searches generated vectors
of 384 dimensions in an index in memory: all collections, and one of ten. Writes JSON to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np

from app.knowledge.dense_index import DenseIndex, MemoryIndex
from app.knowledge.vectors import ChunkVector
from benchmarks import machine
from benchmarks.quantiles import quantile
from benchmarks.result_files import write_result
from engine import TextRole
from testing.minilm import fetch_minilm

CHUNKS_TO_ENCODE, WORDS_PER_CHUNK = 2000, 180
INDEXED_CHUNKS, DIMENSIONS, COLLECTIONS = 200_000, 384, 10
PUT_AT_ONCE = 5000
SEARCHES, LIMIT = 100, 20
COMMON = "the of and to in is for that with you it on as are this be from or by your"
RARE = "refund invoice account server message search upload window printer customer policy install"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the chunks")
    parser.add_argument("--label", default="knowledge")
    given = parser.parse_args()
    results: dict[str, Any] = {"machine": machine.describe(), "scale": given.scale}
    results["encoding"] = asyncio.run(measure_encoding(round(CHUNKS_TO_ENCODE * given.scale)))
    results["dense"] = asyncio.run(measure_dense(round(INDEXED_CHUNKS * given.scale)))
    print(json.dumps(results, indent=2))
    write_result(results, given.label)


async def measure_encoding(count: int) -> dict[str, float]:
    """Encodes chunks as the background pass does, and queries one by one."""
    from engine.encoder.load import load_encoder
    from engine.encoder.local_encoder import LocalEncoder

    encoder = LocalEncoder(load_encoder(str(fetch_minilm()), lambda _stage, _fraction: None), lambda: False)
    chunks = make_chunks(count)
    started, cpu = perf_counter(), process_time()
    result = await encoder.embed(chunks, role=TextRole.DOCUMENT, background=True)
    seconds, cpu_seconds = perf_counter() - started, process_time() - cpu
    tokens = sum(result.num_tokens)
    queries = []
    for chunk in chunks[:SEARCHES]:
        started = perf_counter()
        await encoder.embed([" ".join(chunk.split()[:12])], role=TextRole.QUERY)
        queries.append(1000 * (perf_counter() - started))
    encoder.close()
    return {
        "chunks": count,
        "tokens_per_chunk": tokens / count,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "chunks_per_second": count / seconds,
        "tokens_per_second": tokens / seconds,
        **in_ms("query", queries),
    }


async def measure_dense(count: int) -> dict[str, float]:
    """Fills an index with generated vectors, and searches it: in all collections, and in one of ten."""
    index = MemoryIndex(DIMENSIONS)
    started = perf_counter()
    await fill(index, count)
    filling = perf_counter() - started
    everywhere = [f"collection-{number}" for number in range(COLLECTIONS)]
    return {
        "chunks": count,
        "megabytes": index.num_bytes / 1e6,
        "fill_seconds": filling,
        **in_ms("all", await search_times(index, lambda _: everywhere)),
        **in_ms("one_of_ten", await search_times(index, lambda number: [everywhere[number % COLLECTIONS]])),
    }


async def fill(index: DenseIndex, count: int) -> None:
    noise = np.random.default_rng(0)
    for start in range(0, count, PUT_AT_ONCE):
        rows = noise.normal(size=(min(PUT_AT_ONCE, count - start), DIMENSIONS)).astype(np.float32)
        await index.put(
            [ChunkVector(f"chunk-{start + n}", f"collection-{n % COLLECTIONS}", row) for n, row in enumerate(rows)]
        )


async def search_times(index: DenseIndex, collections: Callable[[int], list[str]]) -> list[float]:
    """Returns the milliseconds of each search."""
    noise = np.random.default_rng(1)
    times = []
    for number in range(SEARCHES):
        query = noise.normal(size=DIMENSIONS).astype(np.float32)
        started = perf_counter()
        await index.search(query, collections=collections(number), limit=LIMIT)
        times.append(1000 * (perf_counter() - started))
    return times


def make_chunks(count: int) -> list[str]:
    """Returns texts of made-up words that a WordPiece tokenizer splits about as English."""
    noise, common, rare = random.Random(0), COMMON.split(), RARE.split()
    return [
        " ".join(noise.choice(common if noise.random() < 0.5 else rare) for _ in range(WORDS_PER_CHUNK))
        for _ in range(count)
    ]


def in_ms(name: str, times: list[float]) -> dict[str, float]:
    return {f"{name}_p50_ms": quantile(times, 0.5), f"{name}_p95_ms": quantile(times, 0.95)}


if __name__ == "__main__":
    main()
