"""MXFP4 checkpoints of GPT-OSS: experts in 4-bit floating point (E2M1) with a power of two for each 32 inputs.

Layout: https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/mxfp4.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.quantized.source import InvalidQuantization, Parts, require_dtype, require_shape

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_BLOCK_BYTES = 16
_NAN_EXPONENT = 255  #: in E8M0 (OCP Microscaling Formats, section 5.4.1)
_BIAS = 127


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """Two codes in each byte of ``*_blocks`` ``[experts, outputs, blocks, 16]``, and an exponent for each block.

    The exponents are ``*_scales``, uint8 ``[experts, outputs, blocks]``. The dense weight is ``[experts, inputs,
    outputs]``.
    """

    bits: int = 4
    is_float: bool = False
    has_groups: bool = False

    @property
    def label(self) -> str:
        return "MXFP4"

    def weights(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        weights = [name.removesuffix("_blocks") for name in names if name.endswith("_blocks")]
        return {weight: {"blocks": f"{weight}_blocks", "scales": f"{weight}_scales"} for weight in weights}

    def shape(self, name: str, parts: Parts) -> tuple[int, ...]:
        blocks, scales = parts["blocks"], parts["scales"]
        require_dtype(f"{name}_blocks", blocks, torch.uint8)
        require_dtype(f"{name}_scales", scales, torch.uint8)
        if blocks.ndim != 4 or blocks.shape[3] != _BLOCK_BYTES:
            found = " x ".join(f"{size}" for size in blocks.shape)
            raise InvalidQuantization(f"{name}_blocks is {found}, which are no blocks of {_BLOCK_BYTES} bytes")
        experts, outputs, groups, _ = blocks.shape
        require_shape(f"{name}_scales", scales, (experts, outputs, groups), f"{name}_blocks")
        bad = int((scales == _NAN_EXPONENT).sum())
        if bad:
            raise InvalidQuantization(f"{bad:,} of the {scales.numel():,} scales in {name}_scales are not numbers")
        return experts, groups * 2 * _BLOCK_BYTES, outputs

    def affine(self, _name: str, _parts: Parts) -> None:
        return None

    def dequantize(self, _name: str, parts: Parts, dtype: torch.dtype) -> Tensor:
        blocks, scales = parts["blocks"], parts["scales"]
        experts, outputs, groups, _ = blocks.shape
        dense = torch.empty(experts, groups * 2 * _BLOCK_BYTES, outputs, dtype=dtype)
        values = torch.tensor(_VALUES)
        for expert in range(experts):  # one at a time, so that the float32 numbers take little memory
            octets = blocks[expert].int()
            numbers = torch.stack([values[octets & 15], values[octets >> 4]], dim=-1).flatten(2)
            exponents = scales[expert].int().sub_(_BIAS).unsqueeze(2)
            dense[expert] = torch.ldexp(numbers, exponents).view(outputs, -1).t()
        return dense
