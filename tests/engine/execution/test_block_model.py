"""Whole models with weights in GGML's block formats, against the dequantized weights in float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine import EngineSettings
from engine.execution.attention.base import LayerCache, Sequences
from engine.execution.batch import Batch
from engine.execution.load import load_model
from engine.execution.native.block_packing import FORMATS
from engine.execution.native.decoder import Decoder
from engine.execution.native.structure import Structure
from engine.execution.native.weights import DecoderWeights, LinearGroup
from engine.model.attention_hook import LayerProbe
from engine.model.loaded_model import LoadedModel
from engine.model.named_tensors import ModuleTensors
from engine.model.tensors import BlockTensor
from testing.blocks import dequantize_blocks, make_blocks, quantize_blocks
from testing.models import make_model
from testing.native import needs_compiler

LENGTH = 70
BLOCK_SIZE = 16
#: Formats of some layers; the others have the first.
MIXTURES = {
    "Q4_0": ["Q4_0"],
    "Q8_0": ["Q8_0"],
    "mixed": ["Q4_1", "Q5_0", "Q8_0", "Q5_1"],
    "with others": ["IQ4_NL", "Q4_0"],
    "of 256": ["Q4_K", "Q5_K", "Q6_K", "Q8_0"],
}
_QUANTIZED = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}  #: the others get random blocks


class Quantized:
    """The weights of a model in block formats; sets the model's own to what they stand for."""

    def __init__(self, model: Any, formats: list[str]) -> None:
        self.released: set[int] = set()  #: addresses of tensors
        self._blocks: dict[str, BlockTensor] = {}
        linears = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear | nn.Embedding)]
        is_tied = model.lm_head.weight is model.model.embed_tokens.weight
        for index, (name, part) in enumerate(linears):
            if name == "lm_head" and is_tied:
                continue
            kind, weight = formats[index % len(formats)], part.weight.detach()
            blocks = (
                quantize_blocks(kind, weight) if kind in _QUANTIZED else make_blocks(kind, *weight.shape, seed=index)
            )
            weight.copy_(dequantize_blocks(blocks))
            self._blocks[f"{name}.weight"] = blocks

        if is_tied:
            self._blocks["lm_head.weight"] = self._blocks["model.embed_tokens.weight"]
        self._others = ModuleTensors(model)

    def names(self) -> Iterable[str]:
        return self._others.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._others.shape(name)

    def block_format(self, name: str) -> str | None:
        return self._blocks[name].format if name in self._blocks else None

    def read(self, name: str) -> Tensor | BlockTensor:
        return self._blocks.get(name, self._others.read(name))

    def release(self, part: Tensor) -> None:
        self.released.add(part.data_ptr())


class Served:
    """Collects the weights that a decoder says it serves."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        self._expected = [model.get_submodule(name).weight.detach() for name in names]
        self._found = [torch.full_like(weight, torch.nan) for weight in self._expected]

    def __call__(self, linear: int, start: int, rows: Tensor) -> None:
        self._found[linear][start : start + len(rows)] = rows

    def check(self, *, exact: bool) -> None:
        for found, expected in zip(self._found, self._expected, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6 if exact else 0.1, atol=1e-7 if exact else 0.01)


def address(tensor: Tensor | BlockTensor) -> int:
    return (tensor.blocks if isinstance(tensor, BlockTensor) else tensor).data_ptr()


def make(folder: Path, formats: list[str], **options: Any) -> tuple[LoadedModel, Decoder]:
    """Returns a model with dequantized weights in float32, and a decoder with the blocks."""
    path = make_model(folder / "model", "qwen3", vocab_size=397, hidden=256, heads=8, **options)
    settings = EngineSettings(model=str(path), device="cpu", dtype="float32", native=False)
    model = load_model(settings, lambda _stage, _fraction: None)
    source = Quantized(model.module, formats)
    weights = DecoderWeights(source, Structure.of(model.module, model.layers), "blocks", torch.bfloat16)
    for group in weights.groups:
        assert isinstance(group, LinearGroup)
        served = Served(model.module, group.names)
        weights.pack(group, served)
        served.check(exact=all(source.block_format(f"{name}.weight") in FORMATS for name in group.names))
    assert source.released >= {address(source.read(name)) for name in source.names() if "mlp" in name}
    caches = [LayerCache.zeros(shape, 8, BLOCK_SIZE, torch.bfloat16, torch.device("cpu")) for shape in model.layers]
    return model, Decoder(weights, caches, [0] * len(caches))


def read(decoder: Decoder, tokens: Tensor, start: int, stop: int) -> Tensor:
    positions = torch.arange(start, stop)
    batch = Batch(
        input_ids=tokens[start:stop].unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        slots=(positions,),
        logits_rows=positions - start,
        sequences=(Sequences((stop - start,), (stop,), (tuple(range(8)),), BLOCK_SIZE),),
        lengths=None,
    )
    return decoder.logits(batch)


@needs_compiler
@pytest.mark.parametrize("formats", MIXTURES.values(), ids=MIXTURES)
@pytest.mark.parametrize("is_tied", [False, True])
@torch.inference_mode()
def test_logits_are_those_of_the_dequantized_weights(tmp_path: Path, formats: list[str], is_tied: bool) -> None:
    model, decoder = make(tmp_path, formats, tie_word_embeddings=is_tied)
    tokens = torch.randint(0, model.vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(LENGTH)
    exact = model.logits(tokens[None], positions[None], positions, LayerProbe()).float()
    whole = read(decoder, tokens, 0, LENGTH)
    assert float((whole - exact).norm() / exact.norm()) < 0.05
    for start, stop in ((0, 33), (33, LENGTH)):  # single rows are attended without rounding their shares
        assert torch.equal(read(decoder, tokens, start, stop), whole[start:stop])
