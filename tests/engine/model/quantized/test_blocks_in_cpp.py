"""The C++ decoder computes a checkpoint's own groups, where it runs the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, EngineSettings, ModelInfo, SamplingParams
from testing import quantized
from testing.models import make_model
from testing.native import needs_compiler
from testing.quantized import Packing, save_quantized

PROMPT = [7 * token % 300 for token in range(40)]


async def scores(model: Path, **settings: Any) -> tuple[torch.Tensor, ModelInfo]:
    """Returns the log-probability of each token of a prompt, and what the engine says of the model."""
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    async with Engine(EngineSettings(model=str(model), device="cpu", **settings)) as engine:
        deltas = [delta async for delta in engine.complete(PROMPT, params)]
        found = [
            one.token.logprob for delta in deltas for one in delta.prompt_logprobs if one.token.logprob is not None
        ]
        return torch.tensor(found), engine.info


@needs_compiler
@pytest.mark.parametrize(
    "packing",
    [
        pytest.param(quantized.awq(64), id="awq"),
        pytest.param(quantized.gptq(4, 128, symmetric=True), id="gptq"),
        pytest.param(quantized.compressed_tensors_packed(4, -1), id="channel"),
    ],
)
async def test_groups_are_not_rounded_again(tmp_path: Path, packing: Packing) -> None:
    """With ``int4`` these weights change by 4 % or more; in blocks, only as bfloat16 rows and 8-bit ends round."""
    from engine.execution.native.decoder import max_rows

    if max_rows() < len(PROMPT):
        pytest.skip("this processor runs only short steps in C++")
    model = make_model(tmp_path / "model", hidden=128, std=0.1)
    save_quantized(model, packing, tmp_path / "quantized", tmp_path / "dense")
    expected, _ = await scores(tmp_path / "dense", dtype="float32")
    own, info = await scores(tmp_path / "quantized")
    rounded, _ = await scores(tmp_path / "quantized", quantization="int4")
    assert info.dtype.startswith(("AWQ", "GPTQ", "compressed-tensors"))
    assert (own - expected).norm() < 0.5 * (rounded - expected).norm()


@needs_compiler
async def test_groups_of_scattered_inputs_are_rounded_again(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", hidden=128, std=0.1)
    save_quantized(model, quantized.gptq(4, 32, desc_act=True), tmp_path / "quantized", tmp_path / "dense")
    _, info = await scores(tmp_path / "quantized")
    assert info.dtype.startswith("int4 and")
