"""Everything that only a GPU can show, checked and measured in one call.

    python -m benchmarks.gpu_check                        # on a machine with a GPU, about five minutes
    python -m benchmarks.gpu_check --device cpu --quick   # the same code on a tiny model, without a GPU

Checks: every attention kernel that runs here against plain attention; greedy replies against transformers; recorded
decodes against executed ones; batch invariance; memory at start, asleep and awake; what is said when it runs out.
Measures: tokens per second and time to first token beside transformers' ``generate``, with and without CUDA graphs,
what share of the memory's bandwidth decoding reaches, and how long the GPU has nothing to do with many chats, with
steps that overlap and without. Each part stands alone: one that fails does not hide the
others. Writes JSON to $OUT, or to benchmarks/results; ends with 1 when a check has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks import machine, models
from benchmarks.model_files import ROOT
from benchmarks.overlap import compare
from benchmarks.peers.deskmate import GREEDY
from benchmarks.peers.deskmate import answer as ours
from benchmarks.peers.protocol import Chat, Reply
from benchmarks.peers.transformers_generate import answer as theirs
from benchmarks.peers.transformers_generate import load_reference
from engine import Engine, EngineSettings, ModelLoadError, SamplingParams
from engine.attention.base import AttentionKernel
from engine.attention.selection import KERNELS
from engine.core import EngineCore
from engine.model.loading import load_model
from tests.support.attention import make_case
from tests.support.models import make_model
from tests.support.reference import Comparison, Reference

GIB = 1024**3
MOST_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Of a kernel's output, relative to its norm."""


@dataclass
class Check:
    """One run of this script."""

    device: str
    quick: bool
    folder: Path
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def part(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Run one part, whatever became of the others."""
        print(f"{name} ...", flush=True)
        begin = perf_counter()
        try:
            result = {"ok": True} | work()
        except Exception as error:  # it is told and counted, and the rest goes on
            traceback.print_exc()
            result = {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
        result["seconds"] = round(perf_counter() - begin, 1)
        self.results[name] = result
        print(f"  {json.dumps(result)}", flush=True)
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def settings(self, path: Path, **options: Any) -> EngineSettings:
        return EngineSettings(model=str(path), device=self.device, **options)

    def tiny(self, family: str) -> Path:
        path = self.folder / family
        return path if path.exists() else make_model(path, family, eos=False)


# -- correctness ------------------------------------------------------------------------------------------------


def attention_kernel(check: Check, kernel: type[AttentionKernel]) -> dict[str, Any]:
    device = torch.device(check.device)
    reason = kernel.unavailable_because(device)
    if reason is not None:
        return {"not_here": reason}
    worst: dict[str, float] = {}
    block_size = max(16, kernel.page_multiple)
    lengths = [1, 3, block_size - 1, block_size, block_size + 1, 2 * block_size + 5, 700]
    caps = (None, 0.7) if kernel.supports_softcap else (None,)
    for dtype in kernel.dtypes or MOST_ERROR:
        error = 0.0
        for seed in range(2 if check.quick else 6):
            case = make_case(
                seed, block_size=block_size, lengths=lengths, heads=8, dim=64, dtype=dtype, device=check.device
            )
            for window in (None, 5, 300):
                for softcap in caps:
                    expected = case.expected(window, softcap)
                    (got,) = case.run(kernel(), window, softcap)
                    error = max(error, float((got.cpu().double() - expected).norm() / expected.norm()))
        worst[str(dtype).removeprefix("torch.")] = error
        assert error < MOST_ERROR[dtype], f"{dtype}: {error:.2g}"
    return {"worst_relative_error": worst}


def greedy_equality(check: Check, family: str) -> dict[str, Any]:
    """In fp32, token for token, many at once, so that decodes are recorded where they can be."""
    path = check.tiny(family)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, 300) for _ in range(rng.choice([1, 7, 40, 90]))] for _ in range(8)]
    params = [replace(GREEDY, max_tokens=rng.choice([4, 16, 24])) for _ in prompts]
    engine = Engine(check.settings(path, dtype="float32", max_num_seqs=8, max_batched_tokens=64))
    completions = engine.generate(prompts, params, show_progress=False)
    attention = engine.info.attention
    asyncio.run(engine.stop())
    reference, comparison = Reference(path, check.device), Comparison()
    for prompt, chosen, completion in zip(prompts, params, completions, strict=True):
        assert chosen.max_tokens is not None
        comparison.check(completion.token_ids, reference.greedy(prompt, chosen.max_tokens), context=family)
    assert comparison.ties <= comparison.tokens // 50
    return {"attention": attention, "tokens": comparison.tokens, "ties": comparison.ties}


def half_precision(check: Check) -> dict[str, Any]:
    """How far log-probabilities in bf16 lie from transformers' in fp32."""
    path = check.tiny("llama")
    rng = random.Random(2)
    prompt = [rng.randrange(3, 300) for _ in range(300)]
    engine = Engine(check.settings(path, dtype="bfloat16", max_batched_tokens=128))
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (completion,) = engine.generate([prompt], params, show_progress=False)
    attention = engine.info.attention
    asyncio.run(engine.stop())
    model = load_reference(path, torch.float32, check.device)
    with torch.inference_mode():
        exact = model(torch.tensor([prompt], device=check.device)).logits[0].log_softmax(-1).cpu()
    ours = torch.tensor([scores.token.logprob for scores in completion.prompt_logprobs[1:]])
    theirs = exact[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:])]
    error = float((ours - theirs).norm() / theirs.norm())
    assert error < 2e-2, f"relative error {error:.2g}"
    return {"attention": attention, "relative_error": error}


def graphs_equal_eager(check: Check) -> dict[str, Any]:
    """A recorded decode gives the very bits of an executed one at the same number of rows."""
    settings = check.settings(check.tiny("llama"), dtype="bfloat16", max_num_seqs=12, max_model_len=256)
    core = EngineCore(load_model(settings, lambda _stage, _fraction: None), settings)
    graphs = core._runner._graphs
    if graphs is None:
        return {"not_here": f"nothing is recorded on {check.device} with {core.kernel.name}"}
    compared = 0
    repeat = graphs.logits

    def both(*step: Any) -> torch.Tensor:
        nonlocal compared
        recorded = repeat(*step).clone()
        graph = next(graph for graph in graphs._graphs if len(graph.batch.logits_rows) >= len(recorded))
        executed = core._runner._compute(graph.batch, graph.prepared)[: len(recorded)]
        assert torch.equal(recorded, executed), f"{len(recorded)} rows differ"
        compared += 1
        return recorded

    graphs.logits = both  # type: ignore[method-assign]
    for index in range(9):
        prompt = list(range(3, 9 + 7 * index))
        params = core.intake.resolve(prompt, replace(GREEDY, max_tokens=4 + 2 * index))
        core.add(core.intake.submission(str(index), prompt, params))
    while core.has_work:
        core.step()
    assert compared > 5
    return {"attention": core.kernel.name, "steps_compared": compared, "sizes": graphs.sizes}


def batch_invariance(check: Check) -> dict[str, Any]:
    path = check.tiny("llama")
    settings = check.settings(path, dtype="bfloat16", batch_invariant=True, max_num_seqs=8)
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 300) for _ in range(rng.randint(1, 80))] for _ in range(6)]
    engine = Engine(settings)
    params = replace(GREEDY, max_tokens=16)
    together = engine.generate(prompts, params, show_progress=False)
    alone = [engine.generate([prompt], params, show_progress=False)[0] for prompt in prompts]
    attention = engine.info.attention
    asyncio.run(engine.stop())
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    return {"attention": attention, "replies": len(prompts)}


# -- memory -----------------------------------------------------------------------------------------------------


def _free(device: str) -> float:
    if device != "cuda":
        return 0.0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] / GIB


def memory(check: Check, path: Path) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        before = _free(check.device)
        async with Engine(check.settings(path, dtype="bfloat16", gpu_memory_utilization=0.7)) as engine:
            prompt = list(range(10, 200))

            async def reply() -> list[int]:
                stream = engine.complete(prompt, replace(GREEDY, max_tokens=8))
                return [token async for delta in stream for token in delta.token_ids]

            first, serving = await reply(), _free(check.device)
            stats = engine.stats()
            await engine.sleep()
            asleep = _free(check.device)
            await engine.wake()
            assert await reply() == first
            awake = _free(check.device)
        if check.device == "cuda":
            assert asleep > before - 1.0, f"{before - asleep:.1f} GiB stay taken while it sleeps"
            assert abs(awake - serving) < 1.0
        return {
            "free_gib": {"before": before, "serving": serving, "asleep": asleep, "awake": awake},
            "kv_blocks": stats.num_kv_blocks,
            "kv_block_size": stats.kv_block_size,
        }

    return asyncio.run(work())


def out_of_memory(check: Check, path: Path) -> dict[str, Any]:
    settings = check.settings(path, dtype="bfloat16", gpu_memory_utilization=0.001, kv_cache_memory=None)
    if check.device != "cuda":
        settings = check.settings(path, dtype="bfloat16", kv_cache_memory=100_000.0)
    said = ""
    try:
        EngineCore(load_model(settings, lambda _stage, _fraction: None), settings)
    except ModelLoadError as error:
        said = str(error)
    assert "ower" in said, said or "it was loaded"
    return {"says": said}


# -- speed ------------------------------------------------------------------------------------------------------


def bandwidth(check: Check) -> float:
    """Bytes per second that the device copies, read and written counted."""
    size = 2**24 if check.device == "cpu" else 2**31
    source = torch.ones(size, dtype=torch.uint8, device=check.device)
    target = torch.empty_like(source)
    times = []
    for _ in range(5):
        begin = perf_counter()
        target.copy_(source)
        if check.device == "cuda":
            torch.cuda.synchronize()
        times.append(perf_counter() - begin)
    return 2 * size / median(times)


def total_rate(replies: Sequence[Reply]) -> float:
    """Tokens per second of all together, prompts included."""
    return sum(len(reply.times) for reply in replies) / max(reply.times[-1] for reply in replies)


def speed(check: Check, path: Path, *, graphs: bool, peer: bool) -> dict[str, Any]:
    rng = random.Random(7)

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(10, most) for _ in range(length))

    if check.quick:
        lengths, new, long, most, max_model_len = (1, 4), 8, 128, 300, 256
    else:
        lengths, new, long, most, max_model_len = (1, 8, 64), 128, 2048, 15_000, 4096

    async def work() -> dict[str, Any]:
        rates: dict[str, Any] = {}
        settings = check.settings(
            path,
            dtype="bfloat16",
            max_model_len=max_model_len,
            cuda_graphs=graphs,
            max_batched_tokens=2048,
            max_num_seqs=64,
        )
        async with Engine(settings) as engine:
            attention = engine.info.attention
            for count in lengths:
                chats = [Chat(prompt(128), new) for _ in range(count)]
                await ours(engine, chats)
                runs = [await ours(engine, [Chat(prompt(128), new) for _ in range(count)]) for _ in range(3)]
                rates[f"{count} chats, tokens/s"] = median(total_rate(run) for run in runs)
                if count == 1:
                    spans = [run[0].times[-1] - run[0].times[0] for run in runs]
                    rates["1 chat, decode tokens/s"] = median((new - 1) / span for span in spans)
            asked = [Chat(prompt(long), 2)]
            rates[f"first token of {long}, s"] = (await ours(engine, asked))[0].first
            rates["the same from the cache, s"] = (await ours(engine, asked))[0].first
        return {"attention": attention, "deskmate": rates}

    result = asyncio.run(work())
    if peer:
        model = load_reference(path, torch.bfloat16, check.device)
        weights = sum(parameter.nbytes for parameter in model.parameters())
        reference: dict[str, float] = {}
        for count in lengths:
            chats = [Chat(prompt(128), new) for _ in range(count)]
            theirs(model, chats)
            reference[f"{count} chats, tokens/s"] = median(total_rate(theirs(model, chats)) for _ in range(2))
        result["transformers"] = reference
        result["ratio"] = {name: result["deskmate"][name] / rate for name, rate in reference.items()}
        copied = bandwidth(check)
        result["copy_bandwidth_gb_s"] = copied / 1e9
        result["share_of_bandwidth"] = weights * result["deskmate"]["1 chat, decode tokens/s"] / copied
    return result


def overlap(check: Check, path: Path) -> dict[str, Any]:
    chats, prompt, new, most, length = (4, 16, 8, 300, 256) if check.quick else (128, 128, 128, 15_000, 1024)
    settings = check.settings(path, dtype="bfloat16", max_model_len=length)
    return compare(settings, chats=chats, prompt=prompt, new=new, vocab_size=most)


# -- all of it --------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models, a few tokens: does this script work?")
    parser.add_argument("--output", type=Path, help="JSON file; default: DATE-gpu_check.json in $OUT or the results")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; --device cpu --quick tries the script without one")

    about = machine.describe()
    if args.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
        about["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
    print(json.dumps(about), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        check = Check(args.device, args.quick, Path(folder))
        for kernel in KERNELS:
            check.part(f"attention {kernel.name}", lambda kernel=kernel: attention_kernel(check, kernel))
        for family in ("llama",) if args.quick else ("llama", "gemma2", "mistral", "qwen3-moe"):
            check.part(f"greedy {family}", lambda family=family: greedy_equality(check, family))
        check.part("bf16", lambda: half_precision(check))
        check.part("graphs", lambda: graphs_equal_eager(check))
        check.part("batch invariance", lambda: batch_invariance(check))
        path = check.tiny("qwen3") if args.quick else check.folder / "b"
        if not args.quick:
            check.part("making model B", lambda: {"model": str(models.make_b(path).name)})
        check.part("memory", lambda: memory(check, path))
        check.part("out of memory", lambda: out_of_memory(check, path))
        check.part("speed", lambda: speed(check, path, graphs=True, peer=True))
        if args.device == "cuda":
            check.part("speed without graphs", lambda: speed(check, path, graphs=False, peer=False))
        check.part("overlap", lambda: overlap(check, path))

    where = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    output = args.output or where / f"{str(about['date'])[:10]}-gpu_check.json"
    output.write_text(json.dumps({"machine": about, "quick": args.quick, "parts": check.results}, indent=1) + "\n")
    failed = [name for name, result in check.results.items() if not result["ok"]]
    for name, result in check.results.items():
        print(
            f"{'ok    ' if result['ok'] else 'FAILED'} {name:<24} {result.get('not_here') or result.get('error') or ''}"
        )
    print(f"written to {output}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
