"""8-bit weights on a GPU: when they can be had, what the kernels are handed, and the kernels themselves.

The kernels run in Triton's interpreter and are compiled for cards that are not here, each in a process of its own, as
in ``test_triton.py``. Nothing here has run on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.errors import ModelLoadError
from engine.model import quantization
from engine.model.gpu_linears import MAX_ROWS, GpuFp8Linear, GpuInt8Linear, GpuLinear
from engine.model.quantization import choose_linears
from engine.model.replacement import replace_linears

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
CASES = Path(__file__).parents[1] / "execution"


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cases", "interpret"), [("triton_linear_cases.py", "1"), ("triton_linear_compile_cases.py", "0")]
)
def test_the_kernels_themselves(cases: str, interpret: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.fail(
            "The package triton is not installed, which this test needs; on Linux `make test-full` installs it."
        )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES / cases)],
        env={**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout


@pytest.mark.parametrize(
    ("asked", "capability", "found"),
    [
        ("none", (9, 0), ((), ())),
        ("int8", (8, 0), ((GpuInt8Linear,), (GpuInt8Linear,))),
        ("fp8", (8, 9), ((GpuFp8Linear,), ())),
        ("fp8", (9, 0), ((GpuFp8Linear,), ())),
        ("fp8", (8, 6), "compute capability 8.9 or later, and this one has 8.6. Use quantization=int8"),
        ("int4", (9, 0), "runs on processors only. Use quantization=int8 or fp8"),
    ],
)
def test_what_a_gpu_gets(
    asked: str, capability: tuple[int, int], found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "triton_unavailable_reason", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: capability)
    if isinstance(found, str):
        with pytest.raises(ModelLoadError, match=found):
            choose_linears(asked, CUDA, torch.bfloat16)
    else:
        linear_classes = choose_linears(asked, CUDA, torch.bfloat16)
        assert (linear_classes.inner, linear_classes.output) == found


def test_where_they_cannot_be_had_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        quantization, "triton_unavailable_reason", lambda _device: "the package triton is not installed"
    )
    for asked in ("int8", "fp8"):
        with pytest.raises(ModelLoadError, match=f"{asked} cannot run on this GPU: the package triton is not"):
            choose_linears(asked, CUDA, torch.bfloat16)
        with pytest.raises(ModelLoadError, match="not with float16"):
            choose_linears(asked, CUDA, torch.float16)
    with pytest.raises(ModelLoadError, match="fp8 runs on GPUs only"):
        choose_linears("fp8", CPU, torch.bfloat16)


class Kernels:
    """Stands in for the Triton kernels, and insists on what those take for granted."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.multiply_row = self.multiply_rows = self

    def __getitem__(self, programs: tuple[int]) -> Any:
        def launch(
            product: Tensor, rows: Tensor, weight: Tensor, scales: Tensor, bias: Tensor, *sizes: int, **tile: Any
        ) -> None:
            assert all(one.is_contiguous() for one in (product, rows, weight, scales, bias))
            assert list(sizes[-2:]) == list(weight.shape)
            assert weight.shape[1] % tile["INPUTS"] == 0
            assert tile["INPUTS"] & (tile["INPUTS"] - 1) == 0
            assert (programs[0] - 1) * tile["OUTPUTS"] < len(weight) <= programs[0] * tile["OUTPUTS"]
            assert len(rows) <= tile.get("ROWS", 1)
            product.copy_(rows @ (weight.float() * scales[:, None]).T.to(rows.dtype))
            if tile["BIASED"]:
                product.add_(bias)
            self.launched.append(len(rows))

        return launch


@pytest.mark.parametrize(("kind", "error"), [(GpuInt8Linear, 0.01), (GpuFp8Linear, 0.04)])
def test_few_rows_go_to_the_kernels_and_many_to_pytorch(
    kind: type[GpuLinear], error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernels()
    monkeypatch.setattr("engine.model.gpu_linears.importlib", SimpleNamespace(import_module=lambda _name: kernels))
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(96, 130), nn.Linear(130, 40), nn.Linear(40, 24)).requires_grad_(False)
    layers = list(net)
    linear_classes = quantization.LinearClasses((kind,), ())
    replaced = replace_linears(net, linear_classes, lambda: net(torch.ones(2, 96)))
    assert replaced.total() == 1  # neither 130 inputs nor 40 are a multiple of 16
    assert [type(one) for one in net] == [kind, nn.Linear, nn.Linear]
    counts = (1, 2, MAX_ROWS, MAX_ROWS + 1, 0)
    for count in counts:
        rows = torch.randn(1, count, 96)
        assert (net[0](rows) - layers[0](rows)).norm() <= error * layers[0](rows).norm()
    assert kernels.launched == [1, 2, MAX_ROWS]


def test_floating_point_of_8_bits_does_not_run_over() -> None:
    weight = torch.cat([torch.zeros(1, 16), torch.full((1, 16), 3.3e38), torch.randn(30, 16)])
    steps, scales = GpuFp8Linear.round(weight)
    assert steps.dtype is torch.float8_e4m3fn
    assert steps.float().isfinite().all()
    restored = steps.float() * scales[:, None]
    assert restored[0].count_nonzero() == 0
    assert (restored[1:] / weight[1:] - 1).abs().max() < 0.5
    assert (restored - weight)[2:].norm() < 0.03 * weight[2:].norm()
