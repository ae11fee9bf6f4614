"""A model whose queries or keys do not follow each token's own position is refused before it answers wrongly."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.models.llama import modeling_llama as llama

from engine import EngineSettings
from engine.errors import ModelLoadError
from engine.execution.load import load_model
from engine.model.position_check import spread_positions
from testing.models import FAMILIES, Family, make_model

LLAMA4 = Family(
    "llama4_text",
    {
        "layer_types": ["full_attention", "full_attention"],
        "no_rope_layers": [1, 0],
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "num_local_experts": 2,
        "intermediate_size_mlp": 128,
    },
)


def load(path: Path) -> None:
    load_model(EngineSettings(model=str(path), dtype="float32", device="cpu", native=False), lambda _a, _b: None)


def test_positions_lie_over_the_whole_context_and_where_something_may_begin() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 10_007}
    config = AutoConfig.for_model("llama", rope_parameters=rope, vocab_size=123_456)
    positions = spread_positions(80_056, config).tolist()
    assert {0, 1, 10_006, 10_007, 10_008, 16_383, 16_384, 65_536, 80_055} <= set(positions)
    assert positions == sorted(set(positions))
    assert max(after - before for before, after in pairwise(positions)) < 80_056 / 20


def test_a_model_that_counts_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 4 scales queries by the row's number, which shows only where a pass has thousands of rows."""
    monkeypatch.setitem(FAMILIES, "llama4", LLAMA4)
    path = make_model(tmp_path / "model", "llama4", max_position_embeddings=32_768)
    with pytest.raises(ModelLoadError, match="queries of its layer 1 do not follow the position of their own token"):
        load(path)


@pytest.mark.parametrize("counted", ["rows", "longest"])
def test_a_model_that_takes_positions_from_elsewhere_is_refused(
    tmp_path: Path, counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = llama.LlamaRotaryEmbedding.forward

    def elsewhere(self: Any, x: Tensor, position_ids: Tensor) -> Any:
        if counted == "rows":
            return forward(self, x, torch.arange(position_ids.shape[1]).unsqueeze(0))
        cosines, sines = forward(self, x, position_ids)
        return cosines * (1 + position_ids.max() // 256), sines

    path = make_model(tmp_path / "model", "llama")
    load(path)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", elsewhere)
    with pytest.raises(ModelLoadError, match="the queries of its layer 0 do not follow"):
        load(path)
