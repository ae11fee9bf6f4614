"""bf16 against fp32, and weights that are one tensor under two names."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine import EngineSettings, SamplingParams
from engine.execution.load import load_model
from engine.runtime.engine_core import EngineCore
from testing.models import make_model

PROMPTS = [random.Random(length).choices(range(3, 390), k=length) for length in (1, 5, 17, 33, 64, 90)]


def engine_logits(path: Path, dtype: str) -> Tensor:
    """``[len(PROMPTS), vocab_size]`` behind each prompt, computed in one batch, in chunks, in fp32 after the model."""
    model = load_model(EngineSettings(model=str(path), dtype=dtype, device="cpu"), lambda _stage, _fraction: None)
    core = EngineCore(
        model, EngineSettings(max_model_len=96, num_kv_blocks=400, kv_block_size=4, max_batched_tokens=64)
    )
    runner: Any = core.strategy.runner
    execute, seen = runner.execute, dict[str, Any]()

    def watched(plan):  # type: ignore[no-untyped-def]
        logits = execute(plan)
        seen.update(zip((chunk.request.id for chunk in plan.sampling), logits.float(), strict=True))
        return logits

    runner.execute = watched
    params = SamplingParams(temperature=0, max_tokens=1)
    for index, prompt in enumerate(PROMPTS):
        core.add(core.request_processor.process(str(index), prompt, core.request_processor.resolve(prompt, params)))
    while core.has_work:
        core.step()
    return torch.stack([seen[str(index)] for index in range(len(PROMPTS))])


@torch.inference_mode()
def reference_logits(path: Path, dtype: torch.dtype) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
    return torch.stack([model(torch.tensor([prompt])).logits[0, -1].float() for prompt in PROMPTS])


def error(logits: Tensor, exact: Tensor) -> float:
    return float((logits - exact).norm() / exact.norm())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "phi3", "gpt-neox"])
def test_bf16_is_as_close_to_fp32_as_transformers_own(family: str, tmp_path: Path) -> None:
    """bf16 keeps 8 bits, so each of a few dozen roundings on the way errs by up to 0.4 %.

    How much of that is left at the end differs by model; no more than half as much again as in transformers, which
    computes the same in another order, is right.
    """
    path = make_model(tmp_path / "model", family, seed=4, eos=False)
    exact = reference_logits(path, torch.float32)
    assert error(engine_logits(path, "float32"), exact) < 1e-5
    theirs = error(reference_logits(path, torch.bfloat16), exact)
    assert 1e-3 < theirs < 0.1
    assert 1e-3 < error(engine_logits(path, "bfloat16"), exact) < 1.5 * theirs


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_stay_one_tensor(tied: bool, tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", "qwen3", seed=4, eos=False, tie_word_embeddings=tied)
    settings = EngineSettings(model=str(path), dtype="float32", device="cpu", native=False)
    module: Any = load_model(settings, lambda _stage, _fraction: None).module
    embeddings, output = module.get_input_embeddings().weight, module.get_output_embeddings().weight
    assert (embeddings.data_ptr() == output.data_ptr()) == tied
    assert error(engine_logits(path, "float32"), reference_logits(path, torch.float32)) < 1e-5
