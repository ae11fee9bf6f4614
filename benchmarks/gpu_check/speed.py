"""Measures speed: one chat on Llama-3-8B's shape in 16 and 8 bits, CUDA graphs on and off, transformers' generate."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoConfig

from benchmarks.gpu_check.check import StageContext
from benchmarks.peers.deskmate import GREEDY
from benchmarks.peers.deskmate import answer as ours
from benchmarks.peers.protocol import Chat, TimedReply
from benchmarks.peers.transformers_generate import answer as theirs
from benchmarks.peers.transformers_generate import load_reference
from benchmarks.perplexity import choices, compare, held_out_dialogues, load_guide
from engine import Engine
from engine.errors import ModelLoadError
from engine.model.quantization import choose_linears

EIGHT_BITS = ("int8", "fp8")
MAX_TOKEN_ID = 15_000  #: limit of token ids in prompts; every tokenizer here knows all ids below it


def prompt(check: StageContext, rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(10, 300 if check.rehearse else MAX_TOKEN_ID) for _ in range(length))


def copy_bandwidth(check: StageContext) -> float:
    """Returns the device's copy bandwidth in bytes per second, reads and writes counted."""
    size = 2**24 if check.device == "cpu" else 2**31
    source = torch.ones(size, dtype=torch.uint8, device=check.device)
    target = torch.empty_like(source)
    times = []
    for _ in range(8):
        check.synchronize()
        begin = perf_counter()
        target.copy_(source)
        check.synchronize()
        times.append(perf_counter() - begin)
    return 2 * size / min(times)


def one_chat(check: StageContext, path: Path, **options: Any) -> dict[str, Any]:
    """Measures a fresh engine's start, the decode rate of one chat and the times to the first token."""
    rng = random.Random(7)
    new, lengths, repeats = (8, (16, 64), 2) if check.rehearse else (256, (128, 2048), 5)
    settings = check.settings(
        path, dtype="bfloat16", max_model_len=256 if check.rehearse else 4096, max_batched_tokens=2048, **options
    )

    async def work() -> dict[str, Any]:
        begin = perf_counter()
        async with Engine(settings) as engine:
            found: dict[str, Any] = {"ready_s": perf_counter() - begin, "attention": engine.info.attention}
            rates = [await decode_rate(engine, prompt(check, rng, lengths[0]), new) for _ in range(repeats + 1)]
            found["decode_tokens_s"] = median(rates[1:])
            for length in lengths:
                asked = [[Chat(prompt(check, rng, length), 2)] for _ in range(repeats + 1)]
                firsts = [(await ours(engine, chats))[0].first for chats in asked]
                found[f"first_token_of_{length}_s"] = median(firsts[1:])
            again = (await ours(engine, asked[-1]))[0].first
            found[f"first_token_of_{length}_cached_s"] = again
        return found

    return asyncio.run(work())


async def decode_rate(engine: Engine, prompt: Sequence[int], new: int) -> float:
    """Returns tokens per second after the first token, on the engine's clock: a reader may get several at once."""
    deltas = [delta async for delta in engine.complete(prompt, replace(GREEDY, max_tokens=new))]
    assert deltas[-1].timings is not None
    return deltas[-1].timings.tokens_per_second


def share_of_bandwidth(check: StageContext, path: Path, tokens_per_second: float) -> dict[str, float]:
    """Returns the share of the copy bandwidth used to read bfloat16 weights.

    Each token reads all weights except the embeddings.
    """
    config = AutoConfig.from_pretrained(path)
    read = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if not config.tie_word_embeddings:
        read -= 2 * config.vocab_size * config.hidden_size
    copied = copy_bandwidth(check)
    return {
        "weights_read_gb": read / 1e9,
        "copy_bandwidth_gb_s": copied / 1e9,
        "share_of_bandwidth": read * tokens_per_second / copied,
    }


def llama(check: StageContext) -> None:
    """Measures one chat in bfloat16."""
    check.part("making the model", lambda: {"folder": check.model("llama-8b").name})
    path = check.model("llama-8b")

    def measured() -> dict[str, Any]:
        for file in path.glob("*.safetensors"):  # into the page cache
            with file.open("rb") as stream:
                while stream.read(2**26):
                    pass
        found = one_chat(check, path)
        return found | share_of_bandwidth(check, path, found["decode_tokens_s"])

    check.part("one chat, bf16", measured)


def eight_bits(check: StageContext) -> None:
    """Compares int8 and fp8 with bfloat16 in one process, and measures their perplexity on the guide."""
    path = check.model("llama-8b")
    whole = check.part("bf16", lambda: one_chat(check, path))
    for quantization in EIGHT_BITS:

        def measured(quantization: str = quantization) -> dict[str, Any]:
            reason = not_here(check, quantization)
            if reason is not None:
                return {"not_here": reason}
            found = one_chat(check, path, quantization=quantization)
            return found | {"decode_against_bf16": found["decode_tokens_s"] / whole["decode_tokens_s"]}

        check.part(quantization, measured)
    check.part("perplexity of the guide", lambda: guide(check))


def not_here(check: StageContext, quantization: str) -> str | None:
    """Returns why a rehearsal cannot run this. On a GPU everything runs: an unsupported format is a failure there."""
    if check.device == "cuda":
        return None
    try:
        choose_linears(quantization, torch.device(check.device), torch.bfloat16)
    except ModelLoadError as reason:
        return str(reason)
    return None


def guide(check: StageContext) -> dict[str, Any]:
    """Measures perplexity on every fourth held-out answer."""
    dialogues = held_out_dialogues()[:: 200 if check.rehearse else 4]
    exact = load_guide("float32", "none", check.device)
    reference = choices(exact, dialogues)[1]
    found = {"float32": compare(exact, dialogues, reference).perplexity}
    for quantization in ("none", *EIGHT_BITS):
        if not_here(check, quantization) is not None:
            continue
        model = load_guide("bfloat16", quantization, check.device)
        found[f"bfloat16, {quantization}"] = compare(model, dialogues, reference).perplexity
    worst = max(found.values()) / found["float32"]
    assert worst < 1.05, f"perplexity grows by a factor of {worst:.2f}: {found}"
    return {"perplexity": found}


def graphs(check: StageContext) -> None:
    """Measures one chat with CUDA graphs on and off, on a small model whose launches take longer than its kernels."""
    path = check.model("qwen3-0.6b")
    recorded = check.part("on", lambda: one_chat(check, path))
    check.part(
        "off",
        lambda: (
            (found := one_chat(check, path, cuda_graphs=False))
            | {"decode_gained_by_graphs": recorded["decode_tokens_s"] / found["decode_tokens_s"]}
        ),
    )


def total_rate(replies: list[TimedReply]) -> float:
    """Returns tokens per second of all replies together, prompts included."""
    return sum(len(reply.times) for reply in replies) / max(reply.times[-1] for reply in replies)


def beside_generate(check: StageContext) -> None:
    """Compares several chats at once with transformers' ``generate``."""
    path = check.model("qwen3-0.6b")
    counts, new, length = ((1, 4), 8, 16) if check.rehearse else ((1, 8, 64), 128, 128)
    rng = random.Random(11)
    works = {count: [[Chat(prompt(check, rng, length), new) for _ in range(count)] for _ in "123"] for count in counts}

    async def engine_rates() -> dict[int, float]:
        settings = check.settings(path, dtype="bfloat16", max_model_len=256 if check.rehearse else 1024)
        async with Engine(settings) as engine:
            return {
                count: median([total_rate(await ours(engine, chats)) for chats in each])
                for count, each in works.items()
            }

    def measured() -> dict[str, Any]:
        rates = asyncio.run(engine_rates())
        model = load_reference(path, torch.bfloat16, check.device)
        others = {count: median(total_rate(theirs(model, chats)) for chats in each) for count, each in works.items()}
        return {
            "deskmate_tokens_s": rates,
            "transformers_tokens_s": others,
            "ratio": {count: rates[count] / others[count] for count in counts},
        }

    check.part("1, 8 and 64 chats", measured)
