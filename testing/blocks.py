"""Weights in GGML's block formats for tests, with the package gguf as the witness of what they mean."""

from __future__ import annotations

import gguf
import numpy as np
import torch
from torch import Tensor

from engine.model.tensors import BlockTensor

_FACTORS = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
}
"""Bytes of a block where its float16 numbers begin; in other formats at 0."""


def make_blocks(name: str, outputs: int, inputs: int, *, seed: int = 0) -> BlockTensor:
    """Returns blocks with any codes and integer scales, and moderate factors of either sign."""
    dice = np.random.default_rng(seed)
    per_block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = dice.integers(0, 256, (outputs, inputs // per_block, size), dtype=np.uint8)
    for at in _FACTORS.get(name, (0,)):
        factors = dice.uniform(0.005, 0.02, blocks.shape[:2]) * dice.choice([-1, 1], blocks.shape[:2])
        blocks[:, :, at : at + 2] = factors.astype(np.float16)[..., None].view(np.uint8)
    return BlockTensor(name, torch.from_numpy(blocks.reshape(outputs, -1)), inputs)


def quantize_blocks(name: str, weight: Tensor) -> BlockTensor:
    """Quantizes float32 ``[outputs, inputs]`` to a format that the package gguf quantizes to."""
    blocks = gguf.quantize(weight.numpy(), gguf.GGMLQuantizationType[name])
    return BlockTensor(name, torch.from_numpy(blocks), weight.shape[1])


def dequantize_blocks(weight: BlockTensor) -> Tensor:
    """Returns float32 ``[outputs, inputs]``."""
    numbers = gguf.dequantize(weight.blocks.numpy(), gguf.GGMLQuantizationType[weight.format])
    rows = torch.from_numpy(np.ascontiguousarray(numbers)).view(len(weight.blocks), weight.inputs)
    return rows if weight.row_order is None else rows[weight.row_order]
