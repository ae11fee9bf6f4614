"""Turns GGML's block formats into numbers, by the package of llama.cpp's own people."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.tensors import BlockTensor

_SLICE = 1 << 22
"""Numbers that are computed at once; NumPy's temporaries take about 20 bytes for each."""


def dequantize(tensor: BlockTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the numbers of a tensor: ``[outputs, inputs]``, in rows as transformers orders them.

    Raises:
        ValueError: the package ``gguf`` does not know the format.
    """
    numbers = dequantize_rows(tensor.format, tensor.blocks, tensor.inputs, dtype)
    return numbers if tensor.row_order is None else numbers[tensor.row_order]


def dequantize_rows(format_: str, blocks: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
    """As :func:`dequantize`, for ``[..., bytes of a row]``; returns ``[..., inputs]``."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as dequantize_blocks

    rows = blocks.reshape(-1, blocks.shape[-1])
    numbers = torch.empty(len(rows), inputs, dtype=dtype)
    try:
        kind = GGMLQuantizationType[format_]
        step = max(_SLICE // inputs, 1)
        for start in range(0, len(rows), step):
            part = dequantize_blocks(rows[start : start + step].numpy(), kind)
            numbers[start : start + step] = torch.from_numpy(part)
    except (KeyError, NotImplementedError) as error:
        raise ValueError(f"there is no way to compute the format {format_}") from error
    return numbers.reshape(*blocks.shape[:-1], inputs)
