"""Packed linear layers against plain ones, and who shares a product."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from engine import EngineSettings
from engine.model.linears import PackedLinear, can_pack, pack_linears
from engine.model.loading import load_model
from tests.support.models import make_model

pytestmark = pytest.mark.skipif(
    not can_pack(torch.device("cpu"), torch.bfloat16), reason="this processor has no bfloat16 of its own"
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


def products(module: nn.Module) -> int:
    """How many there are. Those that several layers share are in none of them, as a module."""
    shared = {id(part._shared) for part in module.modules() if hasattr(part, "_shared")}
    return len(shared) + sum(isinstance(part, PackedLinear) for part in module.modules())


@pytest.mark.parametrize("biased", [(True, True, True), (False, False, False), (True, False, True)])
def test_the_same_comes_out(biased: tuple[bool, bool, bool]) -> None:
    torch.manual_seed(3)
    net = Net(biased)
    inputs = [torch.randn(*shape, 32).bfloat16() for shape in ((1, 1), (1, 7), (3,), (1, 0), (2, 5, 4))]
    expected = [net(rows) for rows in inputs]
    pack_linears(net, lambda: net(inputs[1]))
    assert type(net.idle) is nn.Linear
    for _ in range(2):
        for rows, plain in zip(inputs, expected, strict=True):
            got = net(rows)
            assert got.shape == plain.shape
            torch.testing.assert_close(got.float(), plain.float(), rtol=0.02, atol=0.02)


def test_a_tensor_that_was_written_again_is_read_again() -> None:
    net = Net((False, False, False))
    rows = torch.randn(1, 4, 32).bfloat16()
    pack_linears(net, lambda: net(rows))
    before = net(rows)
    rows.zero_()
    assert not before.equal(after := net(rows))
    assert after[..., :16].count_nonzero() == 0


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
    model = load_model(EngineSettings(model=str(path), dtype="bfloat16"), lambda _stage, _fraction: None)
    assert products(model.module) == 3 * per_layer + 1  # and the output layer
    plain = load_model(EngineSettings(model=str(path), dtype="float32"), lambda _stage, _fraction: None)
    assert products(plain.module) == 0
    assert model.num_parameters == plain.num_parameters == sum(one.numel() for one in plain.module.parameters())
