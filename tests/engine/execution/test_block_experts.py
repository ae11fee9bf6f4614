"""Experts of GGUF files are computed packed, each matrix in its own format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import EngineSettings
from engine.execution.attention.base import LayerCache, Sequences
from engine.execution.batch import Batch
from engine.execution.load import load_model
from engine.execution.native.decoder import Decoder
from engine.execution.native.parity_check import logits_error
from engine.execution.native.weights import DecoderWeights, ExpertGroup, PackedLinear
from engine.model.attention_hook import LayerProbe
from engine.model.loaded_model import LoadedModel
from testing.gguf_files import make_gguf
from testing.native import needs_compiler

LENGTH = 40


def load(path: Path, **settings: object) -> LoadedModel:
    chosen = EngineSettings(model=str(path), device="cpu", **settings)  # type: ignore[arg-type]
    return load_model(chosen, lambda _stage, _fraction: None)


@needs_compiler
@pytest.mark.parametrize("format_", ["Q8_0", "Q4_0", "Q5_1"])
@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
def test_logits_are_those_of_the_dequantized_experts(tmp_path: Path, family: str, format_: str) -> None:
    path = make_gguf(tmp_path / "model.gguf", family, format_)
    model = load(path)
    weights = model.decoder
    assert isinstance(weights, DecoderWeights)
    assert weights.number_format == "blocks"
    positions = torch.arange(LENGTH)
    tokens = positions * 7919 % model.vocab_size
    caches = [LayerCache.zeros(shape, 3, 16, torch.bfloat16, model.device) for shape in model.layers]
    batch = Batch(
        input_ids=tokens.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        slots=(positions,),
        logits_rows=positions,
        sequences=(Sequences((LENGTH,), (LENGTH,), ((0, 1, 2),), 16),),
        lengths=None,
    )
    found = Decoder(weights, caches, [0] * len(caches)).logits(batch)
    exact = load(path, dtype="float32", native=False)
    with torch.inference_mode():
        expected = exact.logits(tokens.unsqueeze(0), positions.unsqueeze(0), positions, LayerProbe())
    assert logits_error(found, expected, weights.structure) < 0.1


@needs_compiler
def test_an_expert_that_is_packed_wrongly_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the logits of the whole model, or before."""
    pack = DecoderWeights._pack_experts

    def exchanged(self: DecoderWeights, group: ExpertGroup, served: object) -> list[PackedLinear]:
        first, second, *others = pack(self, group, served)  # type: ignore[arg-type]
        return [second, first, *others]

    monkeypatch.setattr(DecoderWeights, "_pack_experts", exchanged)
    path = make_gguf(tmp_path / "model.gguf", "mixtral", "Q8_0")
    assert load(path).decoder is None
