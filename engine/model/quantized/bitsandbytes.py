"""bitsandbytes checkpoints: 4 bits (NF4 and FP4, with quantized scales or not) and 8 bits (LLM.int8()).

Layout: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py (``QuantState``)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.quantized.source import (
    InvalidQuantization,
    Parts,
    require_dtype,
    require_finite,
    require_shape,
)

_STATE = ".quant_state.bitsandbytes__"
_NUMBERS_AT_ONCE = 2**24
"""Numbers dequantized at once, so that they take 64 MiB in float32."""
_INT8_STEP = 1 / 127


@dataclass(frozen=True, slots=True)
class Bitsandbytes8BitFormat:
    """int8 weights with a scale for each output, ``SCB``: the largest of its absolute numbers."""

    bits: int = 8
    is_float: bool = False
    has_groups: bool = False

    @property
    def label(self) -> str:
        return "bitsandbytes (8 bits)"

    def weights(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        layers = [name.removesuffix(".SCB") for name in names if name.endswith(".SCB")]
        return {f"{layer}.weight": {"weight": f"{layer}.weight", "scales": f"{layer}.SCB"} for layer in layers}

    def shape(self, name: str, parts: Parts) -> tuple[int, ...]:
        weight, scales = parts["weight"], parts["scales"]
        require_dtype(name, weight, torch.int8)
        require_shape(f"{name.removesuffix('.weight')}.SCB", scales, weight.shape[:1], f"{weight.shape[0]} outputs")
        require_finite(f"{name.removesuffix('.weight')}.SCB", scales)
        return tuple(weight.shape)

    def affine(self, _name: str, _parts: Parts) -> None:
        return None

    def dequantize(self, _name: str, parts: Parts, dtype: torch.dtype) -> Tensor:
        weight, scales = parts["weight"], parts["scales"].float().unsqueeze(1)
        dense = torch.empty(weight.shape, dtype=dtype)
        rows = max(1, _NUMBERS_AT_ONCE // max(weight.shape[1], 1))
        for start in range(0, len(weight), rows):
            dense[start : start + rows] = weight[start : start + rows] * scales[start : start + rows] * _INT8_STEP
        return dense


@dataclass(frozen=True, slots=True)
class Bitsandbytes4BitFormat:
    """Codes of 4 bits, two in a byte, that index 16 values; each block of successive numbers has a scale, ``absmax``.

    With double quantization the scales are 8-bit codes with scales of their own and an offset.
    """

    bits: int = 4
    is_float: bool = False
    has_groups: bool = False

    @property
    def label(self) -> str:
        return "bitsandbytes (4 bits)"

    def weights(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        stored = dict.fromkeys(names)  # in order, for the same message each time
        found: dict[str, dict[str, str]] = {}
        for name in stored:
            weight, state, _kind = name.partition(_STATE)
            if state:
                roles = {"weight": weight, "state": name, "absmax": f"{weight}.absmax", "values": f"{weight}.quant_map"}
                if f"{weight}.nested_absmax" in stored or f"{weight}.nested_quant_map" in stored:
                    roles |= {role: f"{weight}.{role}" for role in ("nested_absmax", "nested_quant_map")}
                found[weight] = roles
        return found

    def shape(self, name: str, parts: Parts) -> tuple[int, ...]:
        state = _State.read(name, parts["state"])
        shape, block, count = state.shape, state.block, math.prod(state.shape)
        octets = parts["weight"].numel() * parts["weight"].itemsize
        if octets != -(-count // 2):
            sizes = " x ".join(f"{size}" for size in shape)
            raise InvalidQuantization(
                f"{name} has {octets:,} bytes, and {sizes} numbers of 4 bits need {-(-count // 2):,}"
            )
        blocks = -(-count // block)
        require_shape(f"{name}.absmax", parts["absmax"], (blocks,), f"{count:,} numbers in blocks of {block}")
        require_shape(f"{name}.quant_map", parts["values"], (16,), "4 bits")
        if "nested_absmax" not in parts:
            require_finite(f"{name}.absmax", parts["absmax"])
            return shape
        require_dtype(f"{name}.absmax", parts["absmax"], torch.uint8)
        outer = state.nested_block
        if outer is None:
            raise InvalidQuantization(f"{name}{_STATE}* has no nested_blocksize")
        because = f"{blocks:,} scales in blocks of {outer}"
        require_shape(f"{name}.nested_absmax", parts["nested_absmax"], (-(-blocks // outer),), because)
        require_shape(f"{name}.nested_quant_map", parts["nested_quant_map"], (256,), "8 bits")
        require_finite(f"{name}.nested_absmax", parts["nested_absmax"])
        return shape

    def affine(self, _name: str, _parts: Parts) -> None:
        return None

    def dequantize(self, name: str, parts: Parts, dtype: torch.dtype) -> Tensor:
        state = _State.read(name, parts["state"])
        block, absmax = state.block, parts["absmax"]
        if state.nested_block is not None and "nested_absmax" in parts:
            outer = parts["nested_absmax"].float().repeat_interleave(state.nested_block)[: len(absmax)]
            absmax = parts["nested_quant_map"].float()[absmax.int()] * outer + state.nested_offset
        octets, values = parts["weight"].contiguous().view(torch.uint8).flatten(), parts["values"].float()
        dense = torch.empty(2 * len(octets), dtype=dtype)
        step = max(1, _NUMBERS_AT_ONCE // block)  # blocks at once
        for start in range(0, len(absmax), step):
            some = octets[start * block // 2 : (start + step) * block // 2].int()
            numbers = torch.stack([values[some >> 4], values[some & 15]], dim=-1).flatten()
            scales = absmax[start : start + step].float().repeat_interleave(block)[: len(numbers)]
            dense[start * block : start * block + len(numbers)] = numbers * scales
        return dense[: math.prod(state.shape)].view(state.shape)


@dataclass(frozen=True, slots=True)
class _State:
    """What describes a 4-bit weight: JSON in the bytes of a tensor."""

    shape: tuple[int, ...]
    block: int  #: numbers that share a scale
    nested_block: int | None  #: scales that share a scale; None without double quantization
    nested_offset: float  #: added to scales that were quantized

    @classmethod
    def read(cls, name: str, packed: Tensor) -> _State:
        """Reads it from its tensor.

        Raises:
            InvalidQuantization: it is damaged.
        """
        where = f"{name}{_STATE}*"
        try:
            state = json.loads(bytes(packed.to(torch.uint8).flatten().tolist()))
        except ValueError as error:
            raise InvalidQuantization(f"{where} is damaged") from error
        if not isinstance(state, dict):
            raise InvalidQuantization(f"{where} is damaged")
        shape, block, outer = state.get("shape"), state.get("blocksize"), state.get("nested_blocksize")
        offset = state.get("nested_offset", 0.0)
        if not (isinstance(shape, list) and shape and all(isinstance(size, int) and size > 0 for size in shape)):
            raise InvalidQuantization(f"{where} says that the shape is {shape}")
        if not (isinstance(block, int) and block > 0 and block % 2 == 0):
            raise InvalidQuantization(f"{where} says that blocks have {block} numbers")
        if outer is not None and not (isinstance(outer, int) and outer > 0):
            raise InvalidQuantization(f"{where} says that blocks of scales have {outer} numbers")
        if not (isinstance(offset, int | float) and math.isfinite(offset)):
            raise InvalidQuantization(f"{where} says that the offset of the scales is {offset}")
        return cls(tuple(shape), block, outer, float(offset))
