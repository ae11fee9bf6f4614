"""Linear layers for CPUs with prepacked weights: bfloat16, 8 bits or 4 bits.

oneDNN reorders a plain bfloat16 weight in every call, which costs more than the product itself if only a few rows are
multiplied. Here that is done once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import ClassVar, TypeGuard

import torch
from torch import Tensor, nn

MIN_SCALE = 2.0**-40
"""Lower bound of scales, so that a row or an output of zeros stays zeros."""
INT4_GROUP = 32
"""Inputs of an output that share a scale, as in llama.cpp's Q4_0."""
_FARTHEST_STEPS = (7.0, 7.5, 8.0, 8.5, 9.0)
"""Steps tried for the number farthest from zero in a group, see :func:`to_int4`."""
_GROUPS_AT_ONCE = 2**19 // INT4_GROUP  #: groups quantized at once, which fit a processor's cache
_MAX_PACKED_ROWS = 48
"""Most rows for the packed product. With more, dequantizing the weights first is faster (measured with AVX-512)."""
_OUTPUTS_AT_ONCE = 1024
"""Outputs whose weights are dequantized at once."""
_HOOKS = {"_forward_hooks", "_forward_pre_hooks"}


class FusedLinear(nn.Module, ABC):
    """One or more linear layers with the same input rows, whose outputs are concatenated.

    Args:
        linears: with the same number of inputs; all of them have a bias, or none.
    """

    bits: ClassVar[str]  #: the weights' number format, in words
    in_features_multiple: ClassVar[int] = 1  #: the number of inputs must be a multiple of this
    out_features_multiple: ClassVar[int] = 1  #: the number of all outputs together must be a multiple of this

    @classmethod
    def fits(cls, linears: Sequence[nn.Linear]) -> bool:
        """Whether the class supports layers of these sizes."""
        outputs = sum(linear.out_features for linear in linears)
        return linears[0].in_features % cls.in_features_multiple == 0 and outputs % cls.out_features_multiple == 0

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.in_features = linears[0].in_features
        self.out_features = sum(linear.out_features for linear in linears)
        weights: list[Tensor] = [linear.weight.detach() for linear in linears]
        biases: list[Tensor] = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self._pack(weights[0] if len(weights) == 1 else torch.cat(weights))
        self._bias = torch.cat(biases) if biases else None

    @abstractmethod
    def _pack(self, weight: Tensor) -> None:
        """Packs a weight ``[out_features, in_features]`` for the product."""

    @abstractmethod
    def forward(self, rows: Tensor) -> Tensor:
        """Maps ``[..., in_features]`` to ``[..., out_features]`` of all layers together."""


class PackedLinear(FusedLinear):
    """bfloat16 weights, prepacked for oneDNN."""

    bits = "bfloat16"

    def _pack(self, weight: Tensor) -> None:
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)  # opaque, for oneDNN only

    def forward(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return product


class Int8Linear(FusedLinear):
    """8-bit weights and rows, 32-bit sums: half the memory to read, and four times the products per instruction.

    Each output of the weight has its own scale, computed once, and each row a scale that follows its largest number
    (LLM.int8(), arXiv 2208.07339, section 2.1, without its treatment of outliers). Rows are stored unsigned, with zero
    point 128, as the processor's instruction requires.
    """

    bits = "8 bits"

    def _pack(self, weight: Tensor) -> None:
        steps, scales = to_int8(weight)
        self._weight: Tensor = torch.ops.onednn.qlinear_prepack(steps, None)  # opaque, for oneDNN only
        self._scales = scales
        self._zeros = torch.zeros(len(scales), dtype=torch.int64)

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, -2)
        scales = flat.abs().amax(1, keepdim=True).float().clamp_min_(MIN_SCALE).div_(127)
        steps = (flat / scales).round_().add_(128).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            steps, 1.0, 128, self._weight, self._scales, self._zeros, None, 1.0, 0, rows.dtype, "none", [], ""
        )
        product = product.mul_(scales)
        if self._bias is not None:
            product += self._bias
        return product.view(*rows.shape[:-1], len(self._scales))


class WidenedInt8Linear(FusedLinear):
    """As :class:`Int8Linear`, for processors without VNNI, on which oneDNN adds products in 16 bits, which overflow.

    Weights are widened to float32 for each product, some at a time: exact up to sums of 2**24, but slow. Models that
    the C++ decoder runs do not need it; it has 8-bit products for these processors.
    """

    bits = "8 bits"

    def _pack(self, weight: Tensor) -> None:
        self._weight, self._scales = to_int8(weight)

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, -2).float()
        scales = flat.abs().amax(1, keepdim=True).clamp_min_(MIN_SCALE).div_(127)
        steps = (flat / scales).round_()
        product = flat.new_empty(len(flat), len(self._scales))
        for start in range(0, len(self._scales), _OUTPUTS_AT_ONCE):
            part = slice(start, start + _OUTPUTS_AT_ONCE)
            torch.mm(steps, self._weight[part].float().t(), out=product[:, part])
        product = product.mul_(self._scales).mul_(scales).to(rows.dtype)
        if self._bias is not None:
            product += self._bias
        return product.view(*rows.shape[:-1], len(self._scales))


class Int4Linear(FusedLinear):
    """4-bit weights, with a scale for each group of 32 inputs of an output; rows are not quantized, sums are float32.

    PyTorch's own kernel multiplies small numbers of rows. It is slow with many rows, for which the weights are
    dequantized, some at a time. Codes are stored unsigned, with offset 8, and PyTorch requires a zero point for each
    group, which is 0 here.
    """

    bits = "4 bits"
    in_features_multiple = INT4_GROUP
    out_features_multiple = 16  # outputs that PyTorch's kernel processes at once

    def _pack(self, weight: Tensor) -> None:
        codes, scales = to_int4(weight)
        self._weight: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32).add_(8), 1)
        steps = scales.t().to(weight.dtype)
        self._scales = torch.stack([steps, torch.zeros_like(steps)], dim=-1)
        outputs_per_block = _int4_outputs_per_block()
        self._outputs_per_block = (
            None if outputs_per_block is None or len(weight) % outputs_per_block else outputs_per_block
        )

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, -2).contiguous()
        product: Tensor
        if len(flat) <= _MAX_PACKED_ROWS or self._outputs_per_block is None:
            product = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, self._weight, INT4_GROUP, self._scales)
        else:
            product = self._multiply_dequantized(flat, self._outputs_per_block)
        if self._bias is not None:
            product += self._bias
        return product.view(*rows.shape[:-1], self._scales.shape[1])

    def _multiply_dequantized(self, rows: Tensor, outputs_per_block: int) -> Tensor:
        num_inputs, num_outputs = rows.shape[1], self._scales.shape[1]
        packed = self._weight.view(num_outputs // outputs_per_block, num_inputs, outputs_per_block // 2).transpose(0, 1)
        product = rows.new_empty(len(rows), num_outputs)
        for start in range(0, num_outputs, _OUTPUTS_AT_ONCE):
            end = min(start + _OUTPUTS_AT_ONCE, num_outputs)
            codes = packed[:, start // outputs_per_block : end // outputs_per_block]
            part = rows.new_empty(num_inputs, (end - start) // outputs_per_block, outputs_per_block)
            part[..., : outputs_per_block // 2] = codes & 15
            part[..., outputs_per_block // 2 :] = codes >> 4
            part -= 8
            part.view(-1, INT4_GROUP, end - start).mul_(self._scales[:, None, start:end, 0])
            torch.mm(rows, part.view(num_inputs, -1), out=product[:, start:end])
        return product


@cache
def _int4_outputs_per_block() -> int | None:
    """Returns how many outputs PyTorch packs together, the first half in the lower bits; None for another layout.

    It is 64 with AVX-512 and 32 with AVX2; other processors have another layout (aten/src/ATen/native/cpu/
    int4mm_kernel.cpp). The layout is not documented, so it is detected.
    """
    codes = (torch.arange(64).unsqueeze(1) * 7 + torch.arange(INT4_GROUP) * 5) // 3 % 16
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
    for outputs_per_block in (64, 32):
        blocks = packed.view(64 // outputs_per_block, INT4_GROUP, outputs_per_block // 2)
        if torch.cat([blocks & 15, blocks >> 4], dim=2).transpose(1, 2).reshape(64, -1).equal(codes.to(torch.uint8)):
            return outputs_per_block
    return None


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module multiplies by its weight, adds its bias and does nothing else, hooks included."""
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and not any(vars(module).get(name) for name in _HOOKS)
    )


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes a weight to int8 ``[out_features, in_features]`` and scales, float32 ``[out_features]``."""
    scales = weight.abs().amax(1).float().clamp_min(MIN_SCALE) / 127
    return (weight / scales.unsqueeze(1)).round_().to(torch.int8), scales


def to_int4(weight: Tensor, group: int = INT4_GROUP) -> tuple[Tensor, Tensor]:
    """Quantizes a weight to codes from -8 to 7 with a scale for each group of inputs: weights are about codes * scales.

    The sign of a group's scale follows the number farthest from zero, so that it can use the code -8. Several steps
    for that number are tried, each with the scale that fits all codes best (least squares), and the one with the
    smallest squared error is kept; llama.cpp's ``make_qx_quants`` tries more of them, and gains little.

    Args:
        weight: ``[out_features, in_features]``; in_features is a multiple of ``group``.

    Returns:
        Codes, int8 ``[out_features, in_features]``, and scales, float32 ``[out_features, in_features / group]``, all of
        which bfloat16 represents exactly.
    """
    groups = weight.reshape(-1, group)
    found = [_int4_groups(part.float()) for part in torch.split(groups, _GROUPS_AT_ONCE)]
    codes, scales = (torch.cat(parts) for parts in zip(*found, strict=True))
    return codes.view(weight.shape), scales.view(len(weight), -1)


def _int4_groups(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes float32 ``[n, group]`` to codes, int8 ``[n, group]``, and scales, float32 ``[n, 1]``."""
    lowest, highest = groups.aminmax(dim=1, keepdim=True)
    farthest = torch.where(-lowest > highest, lowest, highest)
    farthest = torch.where(farthest.abs() < MIN_SCALE, MIN_SCALE, farthest)
    best = scales = torch.empty(0)
    for step in _FARTHEST_STEPS:
        codes = (groups * (-step / farthest)).round_().clamp_(-8, 7)
        products = torch.linalg.vecdot(groups, codes).unsqueeze(1)
        squares = torch.linalg.vecdot(codes, codes).unsqueeze(1)
        scale = (products / squares.clamp_min(1)).bfloat16().float()
        error = scale * (scale * squares - 2 * products)  # squared error minus the sum of the weights' squares
        if len(scales):
            better = error < best
            best, scales = torch.where(better, error, best), torch.where(better, scale, scales)
        else:
            best, scales = error, scale
    scales = torch.where(scales == 0, MIN_SCALE, scales)
    return (groups / scales).round_().clamp_(-8, 7).to(torch.int8), scales
