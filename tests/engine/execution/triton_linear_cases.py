"""Products of 8-bit weights on a GPU against the same numbers in fp64; ``test_gpu_linears.py`` runs this file.

In Triton's interpreter, see ``triton_cases.py``, or by hand on a machine with a GPU.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

from engine.model import gpu_linears
from engine.model.gpu_linears import GpuFp8Linear, GpuInt8Linear, GpuLinear

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
TOLERANCE = {torch.float32: 2e-6 if DEVICE == "cpu" else 2e-5, torch.bfloat16: 6e-3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [GpuInt8Linear, GpuFp8Linear])
@pytest.mark.parametrize(
    ("num_inputs", "outputs", "biased"), [(64, (40,), False), (48, (32, 16, 3), True), (272, (70,), True)]
)
def test_rows_times_weights(
    num_inputs: int, outputs: tuple[int, ...], biased: bool, kind: type[GpuLinear], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    layers = [nn.Linear(num_inputs, size, bias=biased).to(DEVICE, dtype).requires_grad_(False) for size in outputs]
    product = kind(layers)
    steps, scales = kind.round(torch.cat([layer.weight for layer in layers]))
    weight = steps.cpu().double() * scales.cpu().double().unsqueeze(1)
    bias = torch.cat([layer.bias for layer in layers]).cpu().double() if biased else 0

    def check(rows: Tensor) -> None:
        got = product(rows)
        assert (got.shape, got.dtype) == ((*rows.shape[:-1], sum(outputs)), dtype)
        expected = rows.cpu().double() @ weight.T + bias
        for one, other in zip(got.cpu().double().view(-1, sum(outputs)), expected.view(-1, sum(outputs)), strict=True):
            assert (one - other).norm() <= TOLERANCE[dtype] * other.norm()

    rows = torch.randn(1, gpu_linears.MAX_ROWS + 1, num_inputs, device=DEVICE, dtype=dtype)
    for count in (1, 2, 16, 17, gpu_linears.MAX_ROWS, gpu_linears.MAX_ROWS + 1):
        check(rows[:, :count])
    check(rows[0, 3])
    check(rows[:, :0])
    check(torch.cat([rows, rows], dim=-1)[..., :num_inputs][:, :5])  # not contiguous
    rows[0, 0] = 1e4
    check(rows[:, :2])
