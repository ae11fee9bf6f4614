"""Measures how the length of the context slows decodes down, in the C++ decoder, with each dtype of the KV cache.

Steps with short and long contexts alternate in one process, so that what else the machine does slows both down. Times
are medians of the processor's time per step: of one thread, that is the step's duration on an idle machine. Speed does
not depend on the numbers in the cache, which are random. Blocks are handed out in order, as a fresh server does.

    .venv/bin/python -m benchmarks.context_speed [--model FOLDER] [--chats 1 8] [--contexts 128 3900]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import process_time

import torch

from benchmarks import machine
from benchmarks.kv_cache import BLOCK_SIZE, cache_bytes, load
from benchmarks.models import make_m
from benchmarks.result_files import RESULTS
from engine.execution.attention.base import LayerCache, Sequences
from engine.execution.attention.int8_cache import Int8LayerCache
from engine.execution.batch import Batch
from engine.execution.native.decoder import Decoder
from engine.execution.native.weights import DecoderWeights
from engine.model.loaded_model import LoadedModel


@dataclass(frozen=True, slots=True)
class Row:
    """Decodes with one dtype of the cache."""

    kv_cache_dtype: str
    chats: int
    context: int
    milliseconds: float  #: of a step, per thread
    speed: float  #: share of the speed with the shortest context
    cache_megabytes: float  #: that a step reads


SPARE_BLOCKS = 256
"""Unused blocks before and behind the used ones, which so lie in whole huge pages, as in a server's large cache."""


def make_decoder(model: LoadedModel, kv_cache_dtype: str, num_blocks: int) -> Decoder:
    """Makes a decoder with random numbers in so many blocks, from block :data:`SPARE_BLOCKS` on."""
    used = slice(SPARE_BLOCKS, SPARE_BLOCKS + num_blocks)
    num_blocks += 2 * SPARE_BLOCKS
    caches: list[LayerCache] = []
    for shape in model.layers:
        if kv_cache_dtype == "int8":
            cache: LayerCache = Int8LayerCache.allocate(shape, num_blocks, BLOCK_SIZE, model.device)
        else:
            cache = LayerCache.zeros(shape, num_blocks, BLOCK_SIZE, model.dtype, model.device)
        for tensor in cache.tensors:
            if tensor.is_floating_point():
                tensor[used].uniform_(0.001, 0.01)
            else:
                tensor[used].random_(-127, 128)
        caches.append(cache)
    assert isinstance(model.decoder, DecoderWeights)
    return Decoder(model.decoder, caches, [0] * len(caches))


def decode_batch(chats: int, context: int, blocks_per_chat: int) -> Batch:
    """Returns a step that decodes the last token of each chat's context."""
    starts = [SPARE_BLOCKS + chat * blocks_per_chat for chat in range(chats)]
    tables = [tuple(range(start, start + blocks_per_chat)) for start in starts]
    position = context - 1
    slots = torch.tensor([table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for table in tables])
    return Batch(
        input_ids=torch.arange(5, 5 + chats).unsqueeze(0),
        position_ids=torch.full((1, chats), position),
        slots=(slots,),
        logits_rows=torch.arange(chats),
        sequences=(Sequences((1,) * chats, (context,) * chats, tuple(tables), BLOCK_SIZE),),
        lengths=None,
    )


def measure(
    model: LoadedModel, kv_cache_dtype: str, chats: int, contexts: Sequence[int], steps: int, threads: int
) -> list[Row]:
    """Measures decodes of as many chats, alternating between the contexts."""
    blocks_per_chat = -(-max(contexts) // BLOCK_SIZE)
    decoder = make_decoder(model, kv_cache_dtype, chats * blocks_per_chat)
    batches = [decode_batch(chats, context, blocks_per_chat) for context in contexts]
    seconds: list[list[float]] = [[] for _ in contexts]
    for _ in range(steps + 1):
        for batch, taken in zip(batches, seconds, strict=True):
            begin = process_time()
            decoder.logits(batch)
            taken.append((process_time() - begin) / threads)
    typical = [median(taken[1:]) for taken in seconds]
    return [
        Row(
            kv_cache_dtype,
            chats,
            context,
            1000 * each,
            typical[0] / each,
            cache_bytes(model, kv_cache_dtype) * context * chats / 1e6,
        )
        for context, each in zip(contexts, typical, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder; default: model M of the bench, made anew")
    parser.add_argument("--chats", type=int, nargs="+", default=[1], help="chats of a step")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 3900], help="tokens, the shortest first")
    parser.add_argument("--caches", nargs="+", default=["auto", "int8"], choices=["auto", "int8"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--steps", type=int, default=40, help="steps with each context")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    options = parser.parse_args()
    if min(*options.chats, *options.contexts, options.steps, options.threads) < 1:
        parser.error("--chats, --contexts, --steps and --threads must be at least 1.")
    with tempfile.TemporaryDirectory() as folder:
        model = load(options.model or str(make_m(Path(folder) / "M")), options.dtype, "auto")
    torch.set_num_threads(options.threads)
    print(f"{'cache':6} {'chats':>5} {'context':>7} {'ms a step':>9} {'speed':>6} {'cache MB':>8}")
    rows = []
    for kv_cache_dtype in options.caches:
        for chats in options.chats:
            for row in measure(model, kv_cache_dtype, chats, options.contexts, options.steps, options.threads):
                print(
                    f"{row.kv_cache_dtype:6} {row.chats:5} {row.context:7,} {row.milliseconds:9.2f} {row.speed:6.2f} "
                    f"{row.cache_megabytes:8.1f}",
                    flush=True,
                )
                rows.append(asdict(row))
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{datetime.now(UTC):%Y-%m-%d}-context-speed.json"
    asked = {"model": model.name, "dtype": options.dtype, "threads": options.threads, "steps": options.steps}
    file.write_text(json.dumps({"machine": machine.describe(), **asked, "rows": rows}, indent=1) + "\n")
    print(file)


if __name__ == "__main__":
    main()
