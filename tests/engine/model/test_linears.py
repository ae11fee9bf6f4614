"""Packed linear layers against plain ones, and who shares a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP

from benchmarks.perplexity import Predicted, choices, compare, held_out_dialogues, load_guide
from engine import EngineSettings
from engine.errors import ModelLoadError
from engine.execution.load import load_model
from engine.model import linears, replacement
from engine.model.linears import FusedLinear, Int4Linear, Int8Linear, PackedLinear, to_int4
from engine.model.quantization import LinearClasses, choose_linears
from engine.model.replacement import replace_linears
from testing.models import make_model

pytestmark = pytest.mark.skipif(
    not choose_linears("none", torch.device("cpu"), torch.bfloat16).inner or not torch.cpu._is_vnni_supported(),
    reason="this processor multiplies neither bfloat16 nor 8-bit numbers by itself, or only one of them",
)


class Net(nn.Module):
    """Three that read the same, one of them another time; one without company; one that is never called."""

    def __init__(self, biased: Sequence[bool]) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            nn.Linear(32, size, bias=bias) for size, bias in zip((16, 48, 32), biased, strict=True)
        )
        self.alone = nn.Linear(48, 8)
        self.again = nn.Linear(32, 32)
        self.idle = nn.Linear(32, 32)
        self.to(torch.bfloat16).requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        parts = [self.one(rows), self.alone(self.two(rows)), self.three(rows)]
        twice = self.again(self.again(rows))
        return torch.cat([*parts, twice], dim=-1)


def fused_linears(module: nn.Module) -> list[FusedLinear]:
    """Those that several layers share are in none of them, as a module."""
    parts: list[Any] = list(module.modules())
    shared = {id(part._shared): part._shared._product for part in parts if hasattr(part, "_shared")}
    return [*shared.values(), *(part for part in parts if isinstance(part, FusedLinear))]


@pytest.mark.parametrize(
    ("product", "dtype", "error"),
    [
        (PackedLinear, torch.bfloat16, 0.005),
        (Int8Linear, torch.bfloat16, 0.02),
        (Int8Linear, torch.float32, 0.02),
        (Int4Linear, torch.bfloat16, 0.14),
        (Int4Linear, torch.float32, 0.14),
    ],
)
@pytest.mark.parametrize("biased", [(True, True, True), (False, False, False), (True, False, True)])
def test_the_same_comes_out(
    biased: tuple[bool, bool, bool], product: type[FusedLinear], dtype: torch.dtype, error: float
) -> None:
    torch.manual_seed(3)
    net = Net(biased)
    inputs = [torch.randn(*shape, 32).bfloat16() for shape in ((1, 1), (1, 7), (3,), (1, 0), (2, 5, 4))]
    inputs[1][0, 2] *= 1000  # a row has a scale of its own
    inputs[1][0, 3] = 0
    expected = [net.float()(rows.float()) for rows in inputs]
    net.to(dtype)
    replaced = replace_linears(net, LinearClasses((product, Int8Linear), ()), lambda: net(inputs[1].to(dtype)))
    assert replaced.total() == 5
    assert type(net.idle) is nn.Linear
    others = [type(one) for one in fused_linears(net) if type(one) is not product]
    assert others == ([Int8Linear] if product is Int4Linear else [])  # 48 inputs and 8 outputs do not fit
    for _ in range(2):
        for rows, exact in zip(inputs, expected, strict=True):
            got = net(rows.to(dtype))
            assert (got.shape, got.dtype) == (exact.shape, dtype)
            for one, other in zip(got.flatten(0, -2), exact.flatten(0, -2), strict=True):
                assert (one.float() - other).norm() <= error * other.norm()


def test_a_tensor_that_was_written_again_is_read_again() -> None:
    net = Net((False, False, False))
    rows = torch.randn(1, 4, 32).bfloat16()
    replace_linears(net, LinearClasses((PackedLinear,), ()), lambda: net(rows))
    before = net(rows)
    rows.zero_()
    assert not before.equal(after := net(rows))
    assert after[..., :16].count_nonzero() == 0


def test_a_tensor_that_changes_between_its_readers_is_no_company() -> None:
    class Changing(Net):
        def forward(self, rows: Tensor) -> Tensor:
            read = rows.clone()
            first = self.one(read)
            read.mul_(2)
            return torch.cat([first, self.three(read)], dim=-1)

    net = Changing((False, False, False))
    rows = torch.randn(1, 4, 32).bfloat16()
    expected = net(rows)
    assert replace_linears(net, LinearClasses((PackedLinear,), ()), lambda: net(rows)).total() == 2
    assert (net(rows).float() - expected.float()).norm() <= 0.01 * expected.float().norm()


def test_a_linear_layer_that_does_more_stays_as_it_is() -> None:
    net = Net((False, False, False))
    net.alone.register_forward_hook(lambda _module, _rows, output: output * 2)
    rows = torch.randn(1, 4, 32).bfloat16()
    expected = net(rows)
    replace_linears(net, LinearClasses((PackedLinear,), ()), lambda: net(rows))
    assert type(net.alone) is nn.Linear
    assert (net(rows).float() - expected.float()).norm() <= 0.01 * expected.float().norm()


@pytest.mark.parametrize(
    ("family", "per_layer"),
    [
        ("llama", 4),  # queries, keys and values; output; gate and up; down
        ("qwen2", 4),  # with biases on the first three
        ("phi3", 4),  # which has them in one already
        ("gpt-neox", 4),
        ("qwen3-moe", 2),  # its experts are no linear layers
    ],
)
def test_who_reads_the_same_shares_a_product(family: str, per_layer: int, tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", family, layers=3)
    model, plain = (
        load_model(EngineSettings(model=str(path), dtype=dtype, native=False), lambda _stage, _fraction: None)
        for dtype in ("bfloat16", "float32")
    )
    assert model.module is not None
    assert plain.module is not None
    assert len(fused_linears(model.module)) == 3 * per_layer + 1  # and the output layer
    assert fused_linears(plain.module) == []
    assert model.num_parameters == plain.num_parameters == sum(one.numel() for one in plain.module.parameters())


class Router(nn.Module):
    """Two layers that read the same; other code reads the weight of one, too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 16), nn.Linear(32, 16)
        self.to(torch.bfloat16).requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.one(rows) + self.two(rows.to(self.two.weight.dtype))


def test_a_layer_whose_weight_other_code_reads_stays_as_it_is() -> None:
    net = Router()
    rows = torch.randn(1, 4, 32).bfloat16()
    expected = net(rows)
    assert replace_linears(net, LinearClasses((Int8Linear,), ()), lambda: net(rows)) == {"8 bits": 1}
    assert [type(net.one), type(net.two)] == [Int8Linear, nn.Linear]
    assert net.two.__dict__.keys() == nn.Linear(1, 1).__dict__.keys()
    assert (net(rows) - expected).float().norm() < 0.02 * expected.float().norm()


def test_a_model_that_does_not_run_with_replaced_layers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LlamaMLP.forward

    def forward(mlp: LlamaMLP, rows: Tensor) -> Tensor:
        if type(mlp.gate_proj) not in (nn.Linear, replacement._Watched):
            mlp.gate_proj.weight  # noqa: B018
        return plain(mlp, rows)

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    path = make_model(tmp_path / "model", "llama")
    settings = EngineSettings(model=str(path), dtype="bfloat16", device="cpu", quantization="int8", native=False)
    with pytest.raises(ModelLoadError, match=r"no attribute 'weight'.*Use quantization=none"):
        load_model(settings, lambda _stage, _fraction: None)


@dataclass(frozen=True)
class Exact:
    """What the guide says of some dialogues in fp32."""

    dialogues: list[list[dict[str, str]]]
    scores: Tensor
    choices: Tensor
    predicted: Predicted


@pytest.fixture(scope="module")
def exact() -> Exact:
    """Reading the guide's data and the fp32 pass are most of what a comparison takes."""
    dialogues, model = held_out_dialogues()[::40], load_guide("float32", "none")
    scores, reference = choices(model, dialogues)
    return Exact(dialogues, scores, reference, compare(model, dialogues, reference))


@pytest.mark.slow
def test_eight_bits_cost_the_guide_hardly_anything(exact: Exact) -> None:
    rough = load_guide("float32", "int8")
    assert rough.module is not None
    assert {type(one) for one in fused_linears(rough.module)} == {Int8Linear}
    before, after = exact.predicted, compare(rough, exact.dialogues, exact.choices)
    assert before.num_tokens > 200
    assert before.perplexity * 0.98 < after.perplexity < before.perplexity * 1.02
    assert after.perplexity != before.perplexity
    assert after.other_choice < 0.03


def test_four_bits_round_to_the_nearest_of_well_chosen_steps() -> None:
    torch.manual_seed(4)
    weight = torch.randn(48, 96).bfloat16()
    weight[0] = 0
    weight[1, :32] = torch.arange(-8, 24).clamp_max(7) * 0.5  # which sixteen steps hold exactly
    weight[2, :32] = -weight[1, :32]
    weight[3] *= 1e30
    codes, scales = to_int4(weight)
    assert (codes.dtype, codes.shape) == (torch.int8, weight.shape)
    assert (scales.dtype, scales.shape) == (torch.float32, (48, 3))
    assert -8 <= codes.min() < codes.max() <= 7
    assert scales.bfloat16().float().equal(scales)
    restored = (codes.unflatten(1, (3, 32)) * scales.unsqueeze(2)).flatten(1)
    assert restored[0].count_nonzero() == 0
    assert restored[1:3, :32].equal(weight[1:3, :32].float())
    naive = weight.float().unflatten(1, (3, 32))
    steps = naive.abs().amax(2, keepdim=True) / 7
    naive = ((naive / steps).round() * steps).nan_to_num().flatten(1)
    error, naive_error = ((one - weight.float())[4:].norm() for one in (restored, naive))
    assert error < 0.87 * naive_error
    parts = [to_int4(part) for part in weight.split(16)]
    assert torch.cat([part[0] for part in parts]).equal(codes)  # whoever reads the same numbers gets the same


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_four_bits_are_the_same_for_few_rows_and_for_many(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    dequantized_rows: list[int] = []
    compute = Int4Linear._multiply_dequantized

    def noted(product: Int4Linear, rows: Tensor, outputs_per_block: int) -> Tensor:
        dequantized_rows.append(len(rows))
        return compute(product, rows, outputs_per_block)

    monkeypatch.setattr(Int4Linear, "_multiply_dequantized", noted)
    torch.manual_seed(5)
    layer = nn.Linear(96, 1024 + 192).to(dtype).requires_grad_(False)
    rows = torch.randn(1, 70, 96).to(dtype)
    layers = (
        Int4Linear([layer]),
        Int4Linear([nn.Linear(96, 48).to(dtype).requires_grad_(False)]),
    )  # which 64 does not divide
    for product in layers:
        few = torch.cat([product(some) for some in torch.split(rows, 7, dim=1)], dim=1)
        many = product(rows)
        assert (many - few).float().norm() < (1e-5 if dtype is torch.float32 else 6e-3) * few.float().norm()
    known = linears._int4_outputs_per_block()
    assert dequantized_rows == [70 for outputs in (1216, 48) if known is not None and outputs % known == 0]


@pytest.mark.slow
def test_four_bits_leave_the_output_layer_eight_and_say_what_they_did(
    exact: Exact, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="engine.model.load"):
        rough = load_guide("bfloat16", "int4")
    assert "linear layers of models/guide: 28 in 4 bits, 1 in 8 bits" in caplog.text
    assert rough.module is not None
    assert type(rough.module.lm_head) is Int8Linear
    before, after = exact.predicted, compare(rough, exact.dialogues, exact.choices)
    assert before.perplexity * 0.98 < after.perplexity < before.perplexity * 1.1
    assert after.other_choice < 0.1
    # Four bits compute the logits, not eight: the typical token's error is several times that of eight bits.
    eight, four = (
        (choices(model, exact.dialogues)[0] - exact.scores).abs().median()
        for model in (load_guide("bfloat16", "int8"), rough)
    )
    assert four > 3 * eight


def test_where_eight_bits_cannot_be_had_it_is_said() -> None:
    settings = EngineSettings(quantization="int8", device="cpu", dtype="float16")
    with pytest.raises(ModelLoadError, match="goes with dtype=bfloat16 or dtype=float32"):
        load_model(settings, lambda _stage, _fraction: None)
