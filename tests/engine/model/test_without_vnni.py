"""8 and 4 bits on processors without VNNI, such as those with AVX2 only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from engine import EngineSettings
from engine.execution.load import load_model
from engine.model import load, quantization
from engine.model.linears import Int8Linear, WidenedInt8Linear, to_int8
from engine.model.quantization import choose_linears
from testing.models import make_model
from testing.native import needs_compiler

CPU = torch.device("cpu")


@pytest.fixture
def without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch describes a processor with AVX2 only."""
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(load, "choose_dtype", lambda choice, _: getattr(torch, choice.replace("auto", "float32")))


@pytest.mark.usefixtures("without_vnni")
def test_eight_bits_are_widened() -> None:
    assert choose_linears("int8", CPU, torch.bfloat16) == quantization.LinearClasses(
        (WidenedInt8Linear,), (WidenedInt8Linear,)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [(7,), (1000, 30, 10)])
def test_the_products_are_those_of_the_integers(outputs: tuple[int, ...], dtype: torch.dtype) -> None:
    """Among them the largest: pairs of them, added in 16 bits, would overflow."""
    torch.manual_seed(28)
    layers = [nn.Linear(96, size, dtype=dtype) for size in outputs]
    layers[0].weight.data[0] = 1.0
    rows = torch.randn(2, 3, 96, dtype=dtype)
    rows[0, 0] = 5.0
    rows[1, 2] = 0.0
    scales = rows.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    steps = (rows / scales).round().long()
    weight, weight_scales = to_int8(torch.cat([layer.weight.detach() for layer in layers]))
    bias = torch.cat([layer.bias.detach() for layer in layers])
    expected = (steps @ weight.long().t()) * weight_scales * scales + bias
    with torch.inference_mode():
        found = WidenedInt8Linear(layers)(rows)
    assert found.dtype == dtype
    error = 0.02 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.float(), expected.float(), atol=error, rtol=error)


@pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="this CPU has no VNNI instructions")
def test_they_are_those_of_processors_with_vnni() -> None:
    torch.manual_seed(28)
    layer, rows = nn.Linear(64, 48), torch.randn(5, 64)
    with torch.inference_mode():
        torch.testing.assert_close(WidenedInt8Linear([layer])(rows), Int8Linear([layer])(rows))


@needs_compiler
@pytest.mark.usefixtures("without_vnni")
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_the_decoder_runs_fewer_bits_where_the_dtype_is_not_chosen(bits: str, tmp_path: Path) -> None:
    """It has no such products beside float32, which such processors compute other models in."""
    path = make_model(tmp_path / "model", "llama")

    def loaded(**settings: str) -> tuple[bool, str, torch.dtype]:
        chosen = EngineSettings(model=str(path), device="cpu", **settings)  # type: ignore[arg-type]
        model = load_model(chosen, lambda _stage, _fraction: None)
        return model.decoder is not None, model.quantization, model.dtype

    assert loaded(quantization=bits) == (True, bits, torch.bfloat16)
    assert loaded() == (True, "none", torch.float32)
    assert loaded(quantization=bits, dtype="float32") == (False, bits, torch.float32)
