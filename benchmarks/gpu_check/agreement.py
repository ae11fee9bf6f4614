"""Checks that GPU-only code computes the same as the reference: kernels, CUDA graphs, whole replies."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_check.check import StageContext
from benchmarks.peers.deskmate import GREEDY
from benchmarks.peers.transformers_generate import load_reference
from engine import Engine, EngineSettings, ModelLoadError, SamplingParams
from engine.device.triton_support import triton_unavailable_reason
from engine.execution.attention.base import AttentionKernel
from engine.execution.attention.selection import KERNELS
from engine.execution.load import load_model
from engine.model.gpu_linears import MAX_ROWS, GpuFp8Linear, GpuInt8Linear, GpuLinear
from engine.runtime.engine_core import EngineCore
from testing.attention import make_case
from testing.gguf_files import make_gguf
from testing.lora import make_adapter, merge
from testing.reference import Comparison, Reference

MIN_EQUAL_TOKENS = 0.8
"""Share of greedy tokens that must be equal in fp32: a near tie may end one reply's equality, not that of several."""
MAX_RELATIVE_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""dtype -> largest error of a kernel's output, relative to its norm."""


def agreement(check: StageContext) -> None:
    """Checks every attention kernel that runs here, products of 8-bit weights, CUDA graphs, greedy replies."""
    for kernel in KERNELS:
        check.part(f"attention {kernel.name}", partial(attention_kernel, check, kernel))
    for kind in (GpuInt8Linear, GpuFp8Linear):
        check.part(f"products of {kind.__name__}", partial(products, check, kind))
    check.part("recorded decodes", lambda: graphs_equal_eager(check, check.tiny("llama")))
    check.part("greedy llama", lambda: greedy_equality(check, "llama"))


def more_agreement(check: StageContext) -> None:
    """Checks CUDA graphs of a real shape, other families, GGUF files, adapters, bfloat16, batch invariance."""
    check.part("recorded decodes", lambda: graphs_equal_eager(check, check.model("qwen3-0.6b")))
    for family in () if check.rehearse else ("gemma2", "mistral", "qwen3-moe"):
        check.part(f"greedy {family}", partial(greedy_equality, check, family))
    for format_ in ("F16",) if check.rehearse else ("F16", "Q8_0", "Q4_K", "Q6_K"):
        check.part(f"GGUF {format_}", partial(gguf_file, check, format_))
    check.part("adapters", lambda: adapters(check))
    check.part("int8 cache", lambda: int8_cache(check))
    check.part("bf16", lambda: half_precision(check))
    check.part("batch invariance", lambda: batch_invariance(check))


def products(check: StageContext, kind: type[GpuLinear]) -> dict[str, Any]:
    """Compares products with the rounded weights in fp64: one row, a few, as many as the kernels take, and more."""
    reason = (
        "it runs on cuda, not on cpu" if check.device != "cuda" else triton_unavailable_reason(torch.device("cuda"))
    )
    if reason is not None:
        return {"not_here": reason}
    worst: dict[str, float] = {}
    for num_inputs, num_outputs in ((4096, 6144), (14_336, 4096), (896, 1152)):
        layer = nn.Linear(num_inputs, num_outputs, bias=False, device=check.device, dtype=torch.bfloat16)
        layer.requires_grad_(False)
        steps, scales = kind.round(layer.weight)
        weight = steps.double() * scales.double().unsqueeze(1)
        product = kind([layer])
        for count in (1, 2, 16, 17, 64, MAX_ROWS, MAX_ROWS + 1):
            rows = torch.randn(count, num_inputs, device=check.device, dtype=torch.bfloat16)
            expected = rows.double() @ weight.T
            error = float((product(rows).double() - expected).norm() / expected.norm())
            assert error < MAX_RELATIVE_ERROR[torch.bfloat16], (
                f"{num_inputs} to {num_outputs}, {count} rows: {error:.2g}"
            )
            worst[f"{num_inputs} to {num_outputs}"] = max(error, worst.get(f"{num_inputs} to {num_outputs}", 0.0))
    return {"worst_relative_error": worst}


def attention_kernel(check: StageContext, kernel: type[AttentionKernel]) -> dict[str, Any]:
    device = torch.device(check.device)
    reason = kernel.unavailable_reason(device)
    if reason is not None:
        return {"not_here": reason}
    worst: dict[str, float] = {}
    block_size = max(16, kernel.page_multiple)
    lengths = [1, 3, block_size - 1, block_size, block_size + 1, 2 * block_size + 5, 700]
    caps = (None, 0.7) if kernel.supports_softcap else (None,)
    for dtype in kernel.dtypes or MAX_RELATIVE_ERROR:
        error = 0.0
        for seed in range(2 if check.rehearse else 6):
            case = make_case(
                seed, block_size=block_size, lengths=lengths, heads=8, dim=64, dtype=dtype, device=check.device
            )
            for window in (None, 5, 300):
                for softcap in caps:
                    expected = case.expected(window, softcap)
                    (got,) = case.run(kernel(), window, softcap)
                    error = max(error, float((got.cpu().double() - expected).norm() / expected.norm()))
        worst[str(dtype).removeprefix("torch.")] = error
        assert error < MAX_RELATIVE_ERROR[dtype], f"{dtype}: {error:.2g}"
    return {"worst_relative_error": worst}


def greedy_equality(check: StageContext, family: str) -> dict[str, Any]:
    """Compares greedy replies in fp32 token for token, many at once, so that CUDA graphs are used where possible."""
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


def gguf_file(check: StageContext, format_: str) -> dict[str, Any]:
    """Compares greedy replies of a GGUF file in fp32 with those that the CPU computes, which are tested."""
    path = check.folder / f"tiny-{format_}.gguf"
    if not path.exists():
        make_gguf(path, "llama", format_, hidden=256, eos=False)
    prompts = [[3 + (7 * index + at) % 290 for at in range(5 + 9 * index)] for index in range(6)]
    here, on_cpu = (
        _greedy(check.settings(path, dtype="float32", device=device), prompts) for device in (check.device, "cpu")
    )
    return {"same_tokens": _share_equal(here, on_cpu)}


def adapters(check: StageContext) -> dict[str, Any]:
    """Compares greedy replies with a LoRA adapter in fp32, beside one without, with those of merged weights."""
    base = check.tiny("llama")
    adapter = make_adapter(check.folder / "adapter", base)
    merged = merge(base, adapter, check.folder / "merged")
    prompt = list(range(3, 40))

    async def replies() -> list[list[int]]:
        async with Engine(check.settings(base, dtype="float32", lora=f"tiny={adapter}")) as engine:

            async def reply(name: str | None) -> list[int]:
                deltas = engine.complete(prompt, replace(GREEDY, max_tokens=24), adapter=name)
                return [token async for delta in deltas for token in delta.token_ids]

            return list(await asyncio.gather(reply("tiny"), reply(None)))

    found = asyncio.run(replies())
    comparison = Comparison()
    for path, tokens in zip((merged, base), found, strict=True):
        comparison.check(tokens, Reference(path, check.device).greedy(prompt, len(tokens)), context=path.name)
    return {"tokens": comparison.tokens, "ties": comparison.ties}


def int8_cache(check: StageContext) -> dict[str, Any]:
    """Checks that an int8 KV cache works, or is refused with the reason: no kernel of a GPU reads one yet."""
    try:
        replies = _greedy(check.settings(check.tiny("llama"), dtype="bfloat16", kv_cache_dtype="int8"), [[5, 6, 7]])
    except ModelLoadError as refused:
        if "int8" not in str(refused):
            raise
        return {"refused": str(refused)}
    return {"tokens": len(replies[0])}


def _greedy(settings: EngineSettings, prompts: list[list[int]]) -> list[list[int]]:
    """Returns the token ids of greedy replies."""
    engine = Engine(settings)
    completions = engine.generate(prompts, replace(GREEDY, max_tokens=24), show_progress=False)
    asyncio.run(engine.stop())
    return [list(completion.token_ids) for completion in completions]


def _share_equal(found: list[list[int]], expected: list[list[int]]) -> float:
    """Returns the share of equal tokens.

    Raises:
        AssertionError: it is below :data:`MIN_EQUAL_TOKENS`.
    """
    pairs = [pair for one, other in zip(found, expected, strict=True) for pair in zip(one, other, strict=True)]
    share = sum(one == other for one, other in pairs) / len(pairs)
    assert share >= MIN_EQUAL_TOKENS, f"only {share:.2f} of the tokens are equal"
    return share


def half_precision(check: StageContext) -> dict[str, Any]:
    """Measures how far log-probabilities in bf16 are from transformers' in fp32."""
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


def graphs_equal_eager(check: StageContext, path: Path) -> dict[str, Any]:
    """Checks that a CUDA graph's decode is bitwise equal to an eager one with the same number of rows."""
    settings = check.settings(path, dtype="bfloat16", max_num_seqs=12, max_model_len=256)
    core = EngineCore(load_model(settings, lambda _stage, _fraction: None), settings)
    graphs = core.strategy.runner._graphs
    if graphs is None:
        return {"not_here": f"no CUDA graphs on {check.device} with {core.kernel.name}"}
    compared = 0
    repeat = graphs.logits

    def both(*step: Any) -> torch.Tensor:
        nonlocal compared
        recorded = repeat(*step).clone()
        graph = next(graph for graph in graphs._graphs if len(graph.batch.logits_rows) >= len(recorded))
        executed = core.strategy.runner._compute(graph.batch, graph.prepared)[: len(recorded)]
        assert torch.equal(recorded, executed), f"{len(recorded)} rows differ"
        compared += 1
        return recorded

    graphs.logits = both  # type: ignore[method-assign, assignment]
    for index in range(9):
        prompt = list(range(3, 9 + 7 * index))
        params = core.request_processor.resolve(prompt, replace(GREEDY, max_tokens=4 + 2 * index))
        core.add(core.request_processor.process(str(index), prompt, params))
    while core.has_work:
        core.step()
    assert compared > 5
    return {"attention": core.kernel.name, "steps_compared": compared, "sizes": graphs.sizes}


def batch_invariance(check: StageContext) -> dict[str, Any]:
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
