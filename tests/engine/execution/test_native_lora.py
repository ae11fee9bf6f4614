"""The C++ decoder adds adapters to its products in every number format, for any number of rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine import EngineSettings, ModelLoadError
from engine.execution.adapters import load_adapter
from engine.execution.attention.base import LayerCache
from engine.execution.load import load_model
from engine.execution.native.decoder import Decoder
from engine.execution.native.parity_check import text_batch
from engine.execution.native.weights import DecoderWeights
from engine.model.adapter_files import WEIGHTS
from engine.model.linears import INT4_GROUP, to_int4
from engine.model.loaded_model import LoadedModel
from engine.model.lora import AdapterRows, LoraAdapter
from testing.gguf_files import CONVERSIONS, write_gguf
from testing.lora import make_adapter
from testing.models import make_model
from testing.native import FORMATS, needs_compiler

pytestmark = needs_compiler

LENGTH = 40


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file, beside a folder of the same weights, which 4 bits represent: rounding changes tiny models a lot."""
    path = tmp_path_factory.mktemp("models") / "base.gguf"
    folder = make_model(path.with_suffix(""), "llama", hidden=64, eos=False)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "_proj" in name:
            codes, scales = to_int4(tensor.to(torch.bfloat16))
            tensors[name] = (codes.view(len(codes), -1, INT4_GROUP) * scales.unsqueeze(2)).flatten(1).to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write_gguf(folder, path, CONVERSIONS["llama"], GGMLQuantizationType.Q8_0)
    return path


@pytest.fixture(scope="module")
def adapter(gguf: Path) -> Path:
    return make_adapter(gguf.parent / "adapter", gguf.with_suffix(""), rank=11, std=0.15, rank_pattern={"k_proj": 3})


def load(path: Path, **settings: Any) -> LoadedModel:
    return load_model(EngineSettings(model=str(path), device="cpu", _env_file=None, **settings), lambda *_: None)


def logits(model: LoadedModel, rows: list[tuple[int, int, LoraAdapter]], chunks: list[int]) -> Tensor:
    """Returns the logits of a text whose rows have these adapters, computed in chunks that end there."""
    weights = model.decoder
    assert isinstance(weights, DecoderWeights), "it runs in C++"
    caches = [LayerCache.zeros(shape, 16, 16, weights.dtype, torch.device("cpu")) for shape in model.layers]
    decoder = Decoder(weights, caches, [0] * len(caches))
    found = []
    for start, stop in zip([0, *chunks], chunks, strict=False):
        own = [AdapterRows(max(a, start) - start, min(b, stop) - start, adapter) for a, b, adapter in rows]
        batch = text_batch(start, stop, model.vocab_size)
        found.append(decoder.logits(replace(batch, adapters=tuple(one for one in own if one.start < one.stop))))
    return torch.cat(found)


@pytest.fixture(scope="module")
def exact(gguf: Path, adapter: Path) -> tuple[Tensor, Tensor]:
    """Logits in float32, without and with the adapter, which equal those of merged weights (``test_lora.py``)."""
    model = load(gguf.with_suffix(""), dtype="float32")
    loaded = load_adapter(model, "mine", adapter)
    return logits(model, [], [LENGTH]), logits(model, [(0, LENGTH, loaded)], [LENGTH])


@pytest.mark.parametrize(("settings", "error"), [*FORMATS, pytest.param({"dtype": "bfloat16"}, 0.1, id="blocks")])
def test_each_number_format_adds_the_same_update(
    gguf: Path, adapter: Path, exact: tuple[Tensor, Tensor], settings: dict[str, Any], error: float, request: Any
) -> None:
    is_blocks = request.node.callspec.id == "blocks"
    model = load(gguf if is_blocks else gguf.with_suffix(""), **settings)
    loaded = load_adapter(model, "mine", adapter)
    difference = exact[1] - exact[0]
    assert difference.norm() > 0.5 * exact[0].norm()
    found = logits(model, [(0, LENGTH, loaded)], [LENGTH])
    assert (found - exact[1]).norm() < 2 * error * exact[1].norm()


@pytest.mark.parametrize(("settings", "error"), FORMATS)
def test_rows_do_not_depend_on_those_beside_them(
    gguf: Path, adapter: Path, settings: dict[str, Any], error: float
) -> None:
    model = load(gguf.with_suffix(""), **settings)
    loaded = load_adapter(model, "mine", adapter)
    at_once = logits(model, [(0, LENGTH, loaded)], [LENGTH])
    in_chunks = logits(model, [(0, LENGTH, loaded)], [20, 21, 33, LENGTH])
    assert (in_chunks - at_once).norm() < error * at_once.norm()
    beginning = logits(model, [(0, 20, loaded)], [LENGTH])
    assert torch.equal(beginning[:20], at_once[:20])
    assert not torch.allclose(beginning[20:], at_once[20:], atol=0.5)


def test_experts_are_not_adapted(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", "qwen3-moe", eos=False)
    model = load(base, dtype="float32")
    assert model.decoder is not None
    attention = make_adapter(tmp_path / "attention", base, targets=("q_proj", "o_proj"))
    loaded = load_adapter(model, "mine", attention)
    assert not torch.allclose(logits(model, [(0, LENGTH, loaded)], [LENGTH]), logits(model, [], [LENGTH]), atol=0.1)
    tensors = load_file(attention / WEIGHTS)
    save_file({name.replace("self_attn.q_proj", "mlp.gate"): one for name, one in tensors.items()}, attention / WEIGHTS)
    with pytest.raises(ModelLoadError, match=r"mlp\.gate', which is no linear layer of the model that can be adapted"):
        load_adapter(model, "mine", attention)
