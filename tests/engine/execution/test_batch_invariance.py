"""With batch invariance a reply is the same bit by bit alone, beside others, in other chunks and behind a prefix hit.

In fp32 too: there the matrix products depend on the number of rows on processors that hide it in bf16.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor

from engine import EngineSettings, SamplingParams
from engine.execution.load import load_model
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from testing.models import make_model

LENGTH = 12
Dtype = Literal["bfloat16", "float32"]


def load(path: Path | str, dtype: Dtype = "bfloat16") -> LoadedModel:
    settings = EngineSettings(model=str(path), dtype=dtype, device="cpu", native=False)
    return load_model(settings, lambda _stage, _fraction: None)


def run(model: LoadedModel, prompts: list[list[int]], *, budget: int, invariant: bool, warm: bool = False) -> Tensor:
    """``[LENGTH, vocab_size]``: all logits of the first prompt's reply, the others running beside it."""
    core = EngineCore(
        model,
        EngineSettings(
            max_model_len=96,
            num_kv_blocks=300,
            kv_block_size=4,
            max_num_seqs=8,
            max_batched_tokens=budget,
            batch_invariant=invariant,
        ),
    )
    runner: Any = core.strategy.runner
    execute, seen = runner.execute, list[Any]()

    def watched(plan):  # type: ignore[no-untyped-def]
        logits = execute(plan)
        seen.extend(row for chunk, row in zip(plan.sampling, logits, strict=True) if chunk.request.id == "0")
        return logits

    params = SamplingParams(temperature=0.8, seed=5, max_tokens=LENGTH, ignore_eos=True)
    if warm:
        core.add(
            core.request_processor.process("before", prompts[0], core.request_processor.resolve(prompts[0], params))
        )
        while core.has_work:
            core.step()
    runner.execute = watched
    for index in reversed(range(len(prompts))):
        core.add(
            core.request_processor.process(
                str(index), prompts[index], core.request_processor.resolve(prompts[index], params)
            )
        )
    while core.has_work:
        core.step()
    return torch.stack(seen)


def ways(model: LoadedModel, *, invariant: bool) -> list[Tensor]:
    rng = random.Random(7)
    prompts = [rng.choices(range(3, 390), k=length) for length in (45, 3, 60, 1, 17, 30)]
    return [
        run(model, prompts[:1], budget=200, invariant=invariant),
        run(model, prompts, budget=200, invariant=invariant),
        run(model, prompts[:1], budget=9, invariant=invariant),
        run(model, prompts[:2], budget=23, invariant=invariant, warm=True),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3-moe", "gpt-neox"])
def test_a_reply_does_not_depend_on_what_runs_beside_it(family: str, tmp_path: Path) -> None:
    model = load(make_model(tmp_path / "model", family, seed=3, eos=False))
    alone, *others = ways(model, invariant=True)
    assert alone.shape[0] == LENGTH
    for other in others:
        assert torch.equal(alone, other)


@pytest.mark.slow
def test_the_guide_too_and_without_it_the_numbers_do_differ() -> None:
    differing = 0
    for dtype in get_args(Dtype):
        model = load("models/guide", dtype)
        alone, *others = ways(model, invariant=True)
        assert all(torch.equal(alone, other) for other in others)
        alone, *others = ways(model, invariant=False)
        differing += not all(torch.equal(alone, other) for other in others)
    assert differing, "the test sees no difference, whatever is done"
