"""Affine weights as GGML blocks of 32 inputs, which the C++ decoder computes packed.

Groups of 32, 64, 128 or all inputs are blocks that share their scale. Symmetric groups are ``Q4_0`` or ``Q8_0``,
exactly; others are ``Q4_1``, whose minimum, ``- scale * zero point``, is rounded to float16, by at
most 2^-11 of itself.

Formats: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from engine.model.quantized.affine import AffineWeight
from engine.model.tensors import BlockTensor

BLOCK: Final = 32
"""Inputs in a block."""


def block_format(weight: AffineWeight) -> str | None:
    """Returns GGML's name of the format whose blocks hold a weight; None if there is none. Does not look at its codes.

    There is none with groups that are not whole blocks or not successive inputs, with scales beyond float16's range or
    precision, and with zero points of 8 bits.
    """
    inputs, groups = weight.codes.shape[1], weight.scales.shape[1]
    if weight.group_of_input is not None or inputs % groups or inputs // groups % BLOCK:
        return None
    if not torch.equal(weight.scales.half().float(), weight.scales.float()):
        return None
    is_symmetric = bool((_zero_points(weight) == 2 ** (weight.bits - 1)).all())
    if weight.bits == 8:
        return "Q8_0" if is_symmetric else None
    return "Q4_0" if is_symmetric else "Q4_1" if bool(torch.isfinite(_minima(weight)).all()) else None


def to_blocks(weight: AffineWeight) -> BlockTensor | None:
    """Returns a weight in blocks; None if :func:`block_format` knows none for it."""
    name = block_format(weight)
    if name is None:
        return None
    outputs, inputs = weight.codes.shape
    in_each_group = inputs // weight.scales.shape[1] // BLOCK
    parts = [_octets(weight.scales.half(), in_each_group)]
    blocks = weight.codes.view(outputs, -1, BLOCK)
    if name == "Q8_0":
        parts.append((blocks.short() + (_offset(weight) - 128)).to(torch.int8).view(torch.uint8))
    else:
        if name == "Q4_1":
            parts.append(_octets(_minima(weight), in_each_group))
        codes = (blocks + _offset(weight)).to(torch.uint8)
        parts.append(codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4)
    return BlockTensor(name, torch.cat(parts, dim=2).flatten(1), inputs)


def _offset(weight: AffineWeight) -> int:
    """Returns what makes codes unsigned."""
    return 2 ** (weight.bits - 1) if weight.codes.dtype is torch.int8 else 0


def _zero_points(weight: AffineWeight) -> Tensor:
    """Returns the zero points of unsigned codes, int32 ``[outputs, groups]``."""
    zeros = torch.zeros_like(weight.scales, dtype=torch.int32) if weight.zero_points is None else weight.zero_points
    return zeros.int() + _offset(weight)


def _minima(weight: AffineWeight) -> Tensor:
    """Returns what the unsigned code 0 stands for, float16 ``[outputs, groups]``."""
    return (-weight.scales.float() * _zero_points(weight)).half()


def _octets(numbers: Tensor, repeats: int) -> Tensor:
    """Returns float16 ``[outputs, groups]`` as the bytes of each block's number, ``[outputs, blocks, 2]``."""
    of_blocks = numbers.repeat_interleave(repeats, dim=1).contiguous()
    return of_blocks.view(torch.uint8).view(*of_blocks.shape, 2)
