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


def to_blocks(weight: AffineWeight) -> BlockTensor | None:
    """Returns a weight in blocks; None if blocks cannot hold it.

    That is so with groups that are not whole blocks or not successive inputs, with scales beyond float16's range or
    precision, and with zero points of 8 bits.
    """
    outputs, inputs = weight.codes.shape
    groups = weight.scales.shape[1]
    if weight.group_of_input is not None or inputs % groups or inputs // groups % BLOCK:
        return None
    scales = weight.scales.half()
    if not torch.equal(scales.float(), weight.scales.float()):
        return None
    codes, zeros, middle = _unsigned(weight)
    in_each_block = inputs // groups // BLOCK
    blocks = codes.view(outputs, -1, BLOCK)
    parts = [_octets(scales, in_each_block)]
    is_symmetric = bool((zeros == middle).all())
    if weight.bits == 8:
        if not is_symmetric:
            return None
        parts.append((blocks.int() - middle).to(torch.int8).view(torch.uint8))
    else:
        if not is_symmetric:
            lowest = (-weight.scales.float() * zeros).half()
            if not bool(torch.isfinite(lowest).all()):
                return None
            parts.append(_octets(lowest, in_each_block))
        parts.append(blocks[..., : BLOCK // 2] | blocks[..., BLOCK // 2 :] << 4)
    name = "Q8_0" if weight.bits == 8 else "Q4_0" if is_symmetric else "Q4_1"
    return BlockTensor(name, torch.cat(parts, dim=2).flatten(1), inputs)


def _unsigned(weight: AffineWeight) -> tuple[Tensor, Tensor, int]:
    """Returns codes from 0 on, uint8, their zero points, int32 ``[outputs, groups]``, and the middle code."""
    middle = 2 ** (weight.bits - 1)
    offset = middle if weight.codes.dtype is torch.int8 else 0
    codes = (weight.codes.short() + offset).to(torch.uint8)
    zeros = torch.zeros_like(weight.scales, dtype=torch.int32) if weight.zero_points is None else weight.zero_points
    return codes, zeros.int() + offset, middle


def _octets(numbers: Tensor, repeats: int) -> Tensor:
    """Returns float16 ``[outputs, groups]`` as the bytes of each block's number, ``[outputs, blocks, 2]``."""
    of_blocks = numbers.repeat_interleave(repeats, dim=1).contiguous()
    return of_blocks.view(torch.uint8).view(*of_blocks.shape, 2)
