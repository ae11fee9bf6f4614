"""Runs nano-vllm's own benchmark (github.com/GeeeekExplorer/nano-vllm, bench.py) on Qwen3-0.6B's shape.

256 requests at once, prompts and replies of 100 to 1,024 tokens, sampled with seed 0: 133,966 new tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu_check.check import StageContext
from benchmarks.peers.deskmate import GREEDY
from benchmarks.peers.protocol import Chat, PeerConfig
from benchmarks.peers.transformers_batching import ContinuousBatching
from engine import Engine, SamplingParams

NEW_TOKENS = 133_966
_NANO_VLLM = """
import json, sys, time
folder, model = sys.argv[1:]
sys.path.insert(0, folder)
from nanovllm import LLM, SamplingParams
asked = json.load(sys.stdin)
engine = LLM(model, enforce_eager=False, max_model_len=4096)
engine.generate([list(range(10, 40))], SamplingParams(max_tokens=8), use_tqdm=False)
prompts = [prompt for prompt, _new in asked]
params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=new) for _prompt, new in asked]
begin = time.perf_counter()
engine.generate(prompts, params, use_tqdm=False)
print("seconds", time.perf_counter() - begin)
"""


def requests(rehearse: bool) -> list[Chat]:
    """Generates the requests in the order of bench.py: all prompts, then all reply lengths."""
    rng = random.Random(0)
    if rehearse:
        return [Chat(tuple(rng.randint(10, 290) for _ in range(rng.randint(5, 30))), rng.randint(4, 9)) for _ in "1234"]
    prompts = [tuple(rng.randint(0, 10_000) for _ in range(rng.randint(100, 1024))) for _ in range(256)]
    return [Chat(prompt, rng.randint(100, 1024)) for prompt in prompts]


def workload(check: StageContext) -> None:
    chats = requests(check.rehearse)
    new_tokens = sum(chat.new_tokens for chat in chats)
    assert check.rehearse or new_tokens == NEW_TOKENS
    path = check.model("qwen3-0.6b")
    first = check.part("deskmate", lambda: deskmate(check, path, chats, new_tokens))

    def beside(rate: dict[str, Any]) -> dict[str, Any]:
        return rate | {"deskmate_against_it": first["tokens_s"] / rate["tokens_s"]}

    check.part("transformers, continuous batching", lambda: beside(batching(check, path, chats, new_tokens)))
    if check.nano_vllm is not None:
        folder = check.nano_vllm
        check.part("nano-vllm", lambda: beside(nano_vllm(folder, path, chats, new_tokens)))


def deskmate(check: StageContext, path: Path, chats: list[Chat], new_tokens: int) -> dict[str, Any]:
    """Measures with nano-vllm's sampling parameters, and again greedily for peers that only decode greedily."""
    settings = check.settings(
        path,
        dtype="bfloat16",
        max_model_len=256 if check.rehearse else 4096,
        max_num_seqs=len(chats),
        max_batched_tokens=512 if check.rehearse else 8192,
        max_waiting=len(chats),
        enable_prefix_caching=False,
    )
    engine = Engine(settings)
    begin = perf_counter()
    engine.generate([chats[0].prompt], replace(GREEDY, max_tokens=4), show_progress=False)
    found: dict[str, Any] = {"ready_s": perf_counter() - begin, "attention": engine.info.attention}
    drawn = SamplingParams(temperature=0.6, top_p=1.0, top_k=0, min_p=0.0, ignore_eos=True)
    for name, params in (("greedy_tokens_s", GREEDY), ("tokens_s", drawn)):
        begin = perf_counter()
        completions = engine.generate(
            [chat.prompt for chat in chats],
            [replace(params, max_tokens=chat.new_tokens) for chat in chats],
            show_progress=False,
        )
        found[name] = new_tokens / (perf_counter() - begin)
        assert sum(len(completion.token_ids) for completion in completions) == new_tokens
    asyncio.run(engine.stop())
    return found


def batching(check: StageContext, path: Path, chats: list[Chat], new_tokens: int) -> dict[str, Any]:
    """Measures continuous batching greedily, with the attention that needs no extra package."""
    peer = ContinuousBatching(
        PeerConfig(
            model=str(path),
            format="bf16",
            threads=2,
            context=2048,
            chats=len(chats),
            kv_gib=0.05 if check.rehearse else 40.0,
        ),
        device=check.device,
        max_batch_tokens=64 if check.rehearse else 4096,
    )
    peer.run(chats[:2])
    begin = perf_counter()
    replies, _extra = peer.run(chats)
    seconds = perf_counter() - begin
    peer.stop()
    assert sum(len(reply.tokens) for reply in replies) == new_tokens
    return {"tokens_s": new_tokens / seconds, "versions": peer.versions}


def nano_vllm(folder: Path, path: Path, chats: list[Chat], new_tokens: int) -> dict[str, Any]:
    """Measures nano-vllm in a process of its own, with the flash_attn installed there."""
    ran = subprocess.run(
        [sys.executable, "-c", _NANO_VLLM, str(folder), str(path)],
        input=json.dumps([(chat.prompt, chat.new_tokens) for chat in chats]),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    seconds = float(ran.stdout.split("seconds")[-1])
    return {"tokens_s": new_tokens / seconds}
