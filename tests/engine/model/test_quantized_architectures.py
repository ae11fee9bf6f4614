"""A model that is served is served with its linear layers in fewer bits, too, and means the same; no other is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor

from engine import ModelLoadError
from engine.model.attention_hook import LayerProbe
from engine.model.loaded_model import LoadedModel
from testing.architectures import CAUSAL_TYPES, load_exactly, load_or_refuse
from testing.native import needs_8_bits

#: Largest error of the logits, as a share of their size. Layers of 64 inputs with wide random weights are the worst
#: there is (0.29, 0.86 and 0.27 were seen, with experts whose routers choose others, and with layers that run again and
#: again); logits that have nothing to do with one another differ by 1.4.
LARGEST_ERROR: Final = {"int8": 0.5, "int4": 1.0, "none": 0.5}

#: Its router multiplies with the weight of a linear layer itself.
SHORT: Final = frozenset({"hunyuan_v1_moe"})


@torch.inference_mode()
def logits(model: LoadedModel) -> Tensor:
    """``[num_tokens, vocab_size]`` behind each token of a prompt."""
    positions = torch.arange(24)
    tokens = positions * 37 % model.vocab_size
    lengths = torch.full_like(positions, len(positions))
    return model.logits(tokens[None], positions[None], positions, LayerProbe(), lengths).float()


@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=() if name in SHORT else pytest.mark.full) for name in CAUSAL_TYPES]
)
@needs_8_bits
def test_models_mean_the_same_in_fewer_bits_or_are_refused_alike(model_type: str, tmp_path: Path) -> None:
    exact, folder = load_or_refuse(model_type, tmp_path)
    if isinstance(exact, str):
        with pytest.raises(ModelLoadError) as refusal:
            load_exactly(folder, dtype="bfloat16", quantization="int8")
        assert str(refusal.value) == exact
        return
    expected = logits(exact)
    for dtype, quantization in (("float32", "int8"), ("float32", "int4"), ("bfloat16", "int8"), ("bfloat16", "none")):
        got = logits(load_exactly(folder, dtype=dtype, quantization=quantization))
        error = float((got - expected).norm() / expected.norm())
        assert error < LARGEST_ERROR[quantization], (dtype, quantization)
