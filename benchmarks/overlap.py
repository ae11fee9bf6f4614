"""Compares overlapping with sequential steps for many chats at once.

The GPU's idle time comes from the profiler: the time in which no kernel runs, over a number of steps in which all
chats decode. Tokens per second are measured without the profiler.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from benchmarks.peers.deskmate import GREEDY
from engine import EngineSettings, SamplingParams
from engine.execution.load import load_model
from engine.runtime.engine_core import EngineCore

PROFILED_STEPS = 32


def compare(settings: EngineSettings, *, chats: int, prompt: int, new: int, vocab_size: int) -> dict[str, Any]:
    """Measures both ways.

    Args:
        settings: the engine's settings; ``overlap`` and the step sizes are overridden.
        chats: number of concurrent chats. Every second one is sampled with a top-p; the others are greedy.
        prompt: tokens of each prompt.
        new: largest number of tokens of a reply; replies have different lengths and end one after another.
        vocab_size: prompts consist of ids below it.

    Raises:
        AssertionError: the two ways produced different tokens.
    """
    figures: dict[str, Any] = {"chats": chats}
    replies = []
    for overlap in (False, True):
        # All prompts fit into one step. Several steps would be paced by the clock, and in bfloat16 the rounding depends
        # on where prompts are cut into chunks.
        sizes = {"max_num_seqs": chats, "max_batched_tokens": chats * prompt}
        chosen = settings.model_copy(update={"overlap": overlap, **sizes})
        core = EngineCore(load_model(chosen, lambda _stage, _fraction: None), chosen)
        asked = _asked(chats, prompt, new, vocab_size)
        _serve(core, asked)  # warm-up
        core.reset()
        begin = perf_counter()
        replies.append(_serve(core, asked))
        seconds = perf_counter() - begin
        core.reset()
        name = "overlapping" if overlap else "waiting"
        figures[name] = {"tokens/s": sum(map(len, replies[-1].values())) / seconds}
        if core.model.device.type == "cuda":
            figures[name]["gpu_idle_share"] = _idle_share(core, asked)
    assert replies[0] == replies[1], "tokens differ"
    return figures


def _asked(chats: int, prompt: int, new: int, vocab_size: int) -> list[tuple[list[int], SamplingParams]]:
    rng = random.Random(11)
    drawn = SamplingParams(temperature=1.0, top_p=0.9, seed=1, ignore_eos=True)
    return [
        (
            [rng.randrange(10, vocab_size) for _ in range(prompt)],
            replace(drawn if index % 2 else GREEDY, max_tokens=rng.randint(new // 2, new)),
        )
        for index in range(chats)
    ]


def _add(core: EngineCore, asked: list[tuple[list[int], SamplingParams]]) -> None:
    for index, (prompt, params) in enumerate(asked):
        core.add(core.request_processor.process(str(index), prompt, core.request_processor.resolve(prompt, params)))


def _serve(core: EngineCore, asked: list[tuple[list[int], SamplingParams]]) -> dict[str, list[int]]:
    _add(core, asked)
    replies: dict[str, list[int]] = {}
    while core.has_work:
        for delta in core.step().deltas:
            replies.setdefault(delta.request_id, []).extend(delta.token_ids)
    return replies


def _idle_share(core: EngineCore, asked: list[tuple[list[int], SamplingParams]]) -> float:
    """Measures the share of time in which no kernel runs while all chats decode."""
    _add(core, [(prompt, replace(params, max_tokens=10 * PROFILED_STEPS)) for prompt, params in asked])
    begun: set[str] = set()
    while len(begun) < len(asked):
        begun |= {delta.request_id for delta in core.step().deltas if delta.token_ids}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED_STEPS):
            core.step()
        torch.cuda.synchronize()
    core.abort_all()
    core.reset()
    return idle_share(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )


def idle_share(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the share of the time from the first start to the last end that no span covers."""
    ordered = sorted(spans)
    first = until = ordered[0][0]
    busy = 0.0
    for start, end in ordered:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return 1 - busy / (until - first)
