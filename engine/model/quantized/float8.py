"""FP8 checkpoints with scales for blocks (DeepSeek, Qwen) or for whole tensors.

Layout: https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/finegrained_fp8.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.quantized.source import InvalidQuantization, Parts, require_finite, require_shape

_OUTPUTS_AT_ONCE = 1024
"""Outputs multiplied at once, so that the float32 numbers take little memory."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True)
class Float8Format:
    """8-bit floating-point weights, each multiplied by a scale ``weight_scale_inv`` (or ``weight_scale``)."""

    block: tuple[int, int] | None  #: outputs and inputs that share a scale; None if all of a weight do
    bits: int = 8
    is_float: bool = True
    has_groups: bool = False

    @property
    def label(self) -> str:
        return f"FP8 ({'one scale' if self.block is None else f'blocks of {self.block[0]} x {self.block[1]}'})"

    def weights(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        found = {}
        for name in names:
            for suffix in ("_scale_inv", ".weight_scale"):
                if name.endswith(suffix):
                    weight = name.removesuffix(suffix) + (".weight" if suffix == ".weight_scale" else "")
                    found[weight] = {"weight": weight, "scale": name}
        return found

    def shape(self, name: str, parts: Parts) -> tuple[int, ...]:
        weight, scale = parts["weight"], parts["scale"]
        require_float8(name, weight)
        require_finite(f"the scale of {name}", scale)
        if self.block is None:
            if scale.numel() != 1:
                raise InvalidQuantization(
                    f"{name} has {scale.numel()} scales, and its config says one for the whole tensor"
                )
        else:
            require_shape(
                f"the scale of {name}", scale, grid_of(name, weight, self.block), _because(weight, self.block)
            )
        return tuple(weight.shape)

    def affine(self, _name: str, _parts: Parts) -> None:
        return None

    def dequantize(self, _name: str, parts: Parts, dtype: torch.dtype) -> Tensor:
        return multiply_blocks(parts["weight"], parts["scale"], self.block or tuple(parts["weight"].shape[-2:]), dtype)


def require_float8(name: str, weight: Tensor) -> None:
    """Refuses a weight that is not stored as 8-bit floating-point numbers.

    Raises:
        InvalidQuantization: with the type.
    """
    if weight.dtype not in FLOAT8:
        raise InvalidQuantization(
            f"{name} is stored as {str(weight.dtype).removeprefix('torch.')}, and its config says 8-bit floating point"
        )


def _because(weight: Tensor, block: tuple[int, int]) -> str:
    return f"blocks of {block[0]} x {block[1]} of a weight {weight.shape[-2]} x {weight.shape[-1]}"


def grid_of(name: str, weight: Tensor, block: tuple[int, int]) -> tuple[int, ...]:
    """Returns the shape of the scales of a weight's blocks; blocks at its ends may be smaller.

    Raises:
        InvalidQuantization: the weight is no matrix.
    """
    if weight.ndim < 2:
        raise InvalidQuantization(f"{name} has {weight.ndim} dimensions, and blocks need 2")
    return *weight.shape[:-2], -(-weight.shape[-2] // block[0]), -(-weight.shape[-1] // block[1])


def multiply_blocks(weight: Tensor, scales: Tensor, block: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns a weight times the scale of each of its blocks, computed in float32 and rounded once.

    Args:
        weight: ``[..., outputs, inputs]``.
        scales: a single number, or ``[..., ceil(outputs / block[0]), ceil(inputs / block[1])]``.
    """
    scales = scales.float().reshape([1] * weight.ndim) if scales.numel() == 1 else scales.float()
    dense = torch.empty(weight.shape, dtype=dtype)
    outputs, inputs = weight.shape[-2:]
    for start in range(0, outputs, _OUTPUTS_AT_ONCE):
        end = min(start + _OUTPUTS_AT_ONCE, outputs)
        rows = scales[..., torch.arange(start, end) // block[0], :]
        each = rows if rows.shape[-1] == 1 else rows.repeat_interleave(block[1], dim=-1)[..., :inputs]
        dense[..., start:end, :] = weight[..., start:end, :].float() * each
    return dense
