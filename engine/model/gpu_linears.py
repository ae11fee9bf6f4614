"""Linear layers for GPUs with 8-bit weights: int8, or floating point (E4M3), with a scale for each output.

A decode reads every weight for a few rows, so half the bytes may take half the time. Rows are not quantized. The
kernels are in :mod:`engine.model.gpu_kernels`; for many rows, such as prompts, the weights are dequantized and
multiplied by PyTorch. The tests run the kernels in Triton's interpreter and compile them for several GPUs; they have
not run on a GPU yet, and their tile sizes were never tuned on one.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.linears import MIN_SCALE, FusedLinear, to_int8

MAX_ROWS = 128
"""Most rows for the kernels. With more rows, dequantizing the weights pays off."""
MAX_E4M3 = 448.0
"""The largest number in E4M3."""


class GpuLinear(FusedLinear):
    """A linear layer with 8-bit weights that are dequantized in the kernel."""

    in_features_multiple = 16

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._kernels: Any = importlib.import_module("engine.model.gpu_kernels")
        super().__init__(linears)

    @staticmethod
    @abstractmethod
    def round(weight: Tensor) -> tuple[Tensor, Tensor]:
        """Quantizes ``[out_features, in_features]``: returns 8-bit numbers of that shape, and scales, float32
        ``[out_features]``."""

    def _pack(self, weight: Tensor) -> None:
        self._weight, self._scales = self.round(weight)

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        product = self._kernel(flat.contiguous()) if 0 < len(flat) <= MAX_ROWS else self._multiply_dequantized(flat)
        return product.view(*rows.shape[:-1], len(self._scales))

    def _multiply_dequantized(self, rows: Tensor) -> Tensor:
        product = F.linear(rows, self._weight.to(rows.dtype)).mul_(self._scales)
        return product if self._bias is None else product.add_(self._bias)

    def _kernel(self, rows: Tensor) -> Tensor:
        num_rows, (num_outputs, num_inputs) = len(rows), self._weight.shape
        product = rows.new_empty(num_rows, num_outputs)
        tile = row_tile(num_inputs) if num_rows == 1 else rows_tile(num_rows, num_inputs, rows.dtype)
        operands = (product, rows, self._weight, self._scales, product if self._bias is None else self._bias)
        programs = (-(-num_outputs // tile["OUTPUTS"]),)
        with torch.cuda.device_of(rows):
            if num_rows == 1:
                self._kernels.multiply_row[programs](
                    *operands, num_outputs, num_inputs, **tile, BIASED=self._bias is not None
                )
            else:
                self._kernels.multiply_rows[programs](
                    *operands,
                    num_rows,
                    num_outputs,
                    num_inputs,
                    **tile,
                    BIASED=self._bias is not None,
                    UPCAST=rows.device.type == "cpu" and rows.dtype is torch.bfloat16,  # else the interpreter errs
                )
        return product


class GpuInt8Linear(GpuLinear):
    """int8 weights, rounded as on a processor."""

    bits = "8 bits"

    @staticmethod
    def round(weight: Tensor) -> tuple[Tensor, Tensor]:
        return to_int8(weight)


class GpuFp8Linear(GpuLinear):
    """E4M3 (arXiv 2209.05433): finer than int8 near zero, coarser far from it."""

    bits = "8 bits, floating point"

    @staticmethod
    def round(weight: Tensor) -> tuple[Tensor, Tensor]:
        scales = weight.abs().amax(1).float().clamp_min(MIN_SCALE) / MAX_E4M3
        steps = (weight / scales.unsqueeze(1)).clamp_(-MAX_E4M3, MAX_E4M3)
        return steps.to(torch.float8_e4m3fn), scales


def row_tile(num_inputs: int) -> dict[str, int]:
    """Returns the tile of a program of ``multiply_row``: 8 KiB of weights, of as few outputs as possible."""
    inputs = _largest_dividing_power_of_two(num_inputs, 2048)
    return {"OUTPUTS": min(8192 // inputs, 16), "INPUTS": inputs, "num_warps": 4}


def rows_tile(num_rows: int, num_inputs: int, dtype: torch.dtype) -> dict[str, int]:
    """Returns the tile of a program of ``multiply_rows``, which prefetches three more tiles."""
    rows = max(16, 1 << (num_rows - 1).bit_length())
    maximum = max(16, min(256, 16_384 // (rows * dtype.itemsize)))
    return {
        "ROWS": rows,
        "OUTPUTS": 32,
        "INPUTS": _largest_dividing_power_of_two(num_inputs, maximum),
        "num_warps": 4,
        "num_stages": 4,
    }


def _largest_dividing_power_of_two(number: int, maximum: int) -> int:
    """Returns the largest power of two up to ``maximum`` that divides a number."""
    return min(number & -number, maximum)
