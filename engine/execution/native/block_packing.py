"""Packs weights in GGML's block formats for the C++ decoder, straight from their file.

The layout is that of ``block_formats.h``: codes and scales keep their bits, and a matrix takes as many bytes as in its
file.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from engine.errors import first_line
from engine.execution.native.build import load_library
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.structure import LANES
from engine.model.gguf.dequantize import dequantize_rows
from engine.model.tensors import BlockTensor

_PANEL_FIELDS = 3  #: 64-bit numbers in ``Panel``: the addresses of codes and scales, GGML's number of the type
_GROUP = 32  #: inputs of a row that share a scale: all widths are multiples of it
_ROWS_AT_ONCE = 1024  #: outputs that are repacked at once


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block format that the decoder computes as it is."""

    number: int  #: GGML's, of the type
    inputs: int  #: of a block
    bytes: int  #: of a block
    code_bytes: int  #: of a block; the others are scales


FORMATS = {
    "Q4_0": BlockFormat(2, 32, 18, 16),
    "Q4_1": BlockFormat(3, 32, 20, 16),
    "Q5_0": BlockFormat(6, 32, 22, 20),
    "Q5_1": BlockFormat(7, 32, 24, 20),
    "Q8_0": BlockFormat(8, 32, 34, 32),
    "Q4_K": BlockFormat(12, 256, 144, 128),
    "Q5_K": BlockFormat(13, 256, 176, 160),
    "Q6_K": BlockFormat(14, 256, 210, 192),
}


REPACKED_FORMAT = "Q8_0"
"""The format of weights that are in none of :data:`FORMATS`."""


def pack_panels(weights: Sequence[BlockTensor], pages: Any, *, interleaved: bool = False) -> Tensor:
    """Packs linear layers that read the same rows; each may have a format of its own.

    Args:
        weights: in any of :data:`FORMATS`. All but the last have a multiple of :data:`LANES` outputs.
        pages: a ``HugePageArena``, which gets the weights and must live as long as the result.
        interleaved: :data:`LANES` outputs of each layer in turn, instead of one layer after another; of a single layer,
            :data:`LANES` of its first and of its second half.

    Returns:
        The table of panels, int64 ``[outputs / 16, 3]``, which holds addresses.

    Raises:
        UnsupportedModel: the sizes do not suit the formats.
    """
    for weight in weights:
        _check(weight)
    if interleaved and len(weights) == 1:
        weights = _halves(weights[0])
    counts = [-(-len(weight.blocks) // LANES) for weight in weights]
    stride = len(weights) if interleaved else 1
    table = torch.empty(sum(counts), _PANEL_FIELDS, dtype=torch.int64)
    parts = [table[index::stride] for index in range(stride)] if interleaved else table.split(counts)
    if [len(part) for part in parts] != counts:
        raise UnsupportedModel("layers that are computed together differ in their sizes")
    for part, weight in zip(parts, weights, strict=True):
        kind = FORMATS[weight.format]
        count = LANES * weight.inputs // kind.inputs
        part[:] = torch.tensor([count * kind.code_bytes, count * (kind.bytes - kind.code_bytes), kind.number])
    for field in (0, 1):  # sizes become addresses
        sizes = table[:, field].clone()
        table[:, field] = pages.empty((int(sizes.sum()),), torch.uint8).data_ptr() + sizes.cumsum(0) - sizes
    for part, weight in zip(parts, weights, strict=True):
        blocks, order = weight.blocks.contiguous(), weight.row_order
        order = None if order is None else order.to(torch.int64).contiguous()
        _functions().pack(
            part.data_ptr(),
            stride,
            blocks.data_ptr(),
            *blocks.shape,
            None if order is None else order.data_ptr(),
            torch.get_num_threads(),
        )
    return table


def dequantize_panels(table: Tensor, inputs: int, first: int, last: int) -> Tensor:
    """Returns the weights of the outputs ``first`` to ``last - 1``, float32 ``[last - first, inputs]``."""
    weights = torch.empty(last - first, inputs)
    _functions().dequantize(table.data_ptr(), inputs, first, last, weights.data_ptr(), torch.get_num_threads())
    return weights


def to_packable(weight: Tensor | BlockTensor) -> BlockTensor:
    """Returns a weight in one of :data:`FORMATS`: as it is, or repacked as :data:`REPACKED_FORMAT`.

    Raises:
        UnsupportedModel: its rows are not a multiple of 32 numbers, or its format is unknown.
    """
    if isinstance(weight, BlockTensor):
        if weight.format in FORMATS:
            return weight
        rows, inputs = weight.blocks, weight.inputs
    else:
        rows, inputs = weight, weight.shape[1]
    if inputs % _GROUP:
        raise UnsupportedModel(f"the width of its rows, {inputs}, is not a multiple of {_GROUP}")
    kind = FORMATS[REPACKED_FORMAT]
    repacked = torch.empty(len(rows), inputs // kind.inputs * kind.bytes, dtype=torch.uint8)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        numbers = _dequantize(weight, part) if isinstance(weight, BlockTensor) else part.float()
        repacked[start : start + _ROWS_AT_ONCE] = _to_q8_0(numbers)
    return BlockTensor(REPACKED_FORMAT, repacked, inputs, weight.row_order if isinstance(weight, BlockTensor) else None)


def _halves(weight: BlockTensor) -> list[BlockTensor]:
    """Splits the outputs."""
    if weight.row_order is None:
        return [replace(weight, blocks=half) for half in weight.blocks.chunk(2)]
    return [replace(weight, blocks=weight.blocks[order], row_order=None) for order in weight.row_order.chunk(2)]


def _check(weight: BlockTensor) -> None:
    kind = FORMATS.get(weight.format)
    if kind is None:
        raise UnsupportedModel(f"the C++ decoder does not compute {weight.format}")
    if weight.inputs % kind.inputs:
        raise UnsupportedModel(
            f"the width of its rows, {weight.inputs}, is not a multiple of {kind.inputs}, a block of {weight.format}"
        )
    expected = weight.inputs // kind.inputs * kind.bytes
    if weight.blocks.shape[1] != expected:
        raise UnsupportedModel(
            f"a row of {weight.inputs} numbers in {weight.format} has {expected} bytes, not {weight.blocks.shape[1]}"
        )


def _dequantize(weight: BlockTensor, rows: Tensor) -> Tensor:
    """Dequantizes rows of a format that the decoder does not compute, slowly."""
    try:
        return dequantize_rows(weight.format, rows, weight.inputs, torch.float32)
    except ValueError as error:
        raise UnsupportedModel(first_line(error)) from error


def _to_q8_0(numbers: Tensor) -> Tensor:
    """Quantizes float32 ``[rows, inputs]`` to Q8_0, uint8 ``[rows, inputs / 32 * 34]``.

    Codes fit the scale as it is after rounding to float16, so that whole multiples of a power of two stay exact.
    """
    groups = numbers.unflatten(1, (-1, _GROUP))
    scales = (groups.abs().amax(2, keepdim=True) / 127).to(torch.float16)
    steps = scales.float()
    codes = torch.where(steps > 0, groups / steps, 0).round_().clamp_(-127, 127).to(torch.int8)
    return torch.cat([scales.view(torch.uint8), codes.view(torch.uint8)], 2).flatten(1)


@dataclass(frozen=True, slots=True)
class _Functions:
    pack: Any
    dequantize: Any


@cache
def _functions() -> _Functions:
    code = load_library()
    pack, dequantize = code.deskmate_pack_blocks, code.deskmate_dequantize_blocks
    size, address = ctypes.c_int64, ctypes.c_void_p
    pack.argtypes = [address, size, address, size, size, address, size]
    dequantize.argtypes = [address, size, size, size, address, size]
    pack.restype = dequantize.restype = None
    return _Functions(pack, dequantize)
