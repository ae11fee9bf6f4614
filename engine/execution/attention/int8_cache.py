"""The int8 KV cache: keys and values as int8, with a float32 scale for each token and kv head.

A key or value ``x`` is stored as ``round(x / scale)``, where ``scale`` is its largest magnitude divided by 127. So a
token's numbers depend on that token alone, whichever step wrote them. Numbers are arranged for the C++ decoder
(engine/execution/native/int8_cache.h): 64 bytes hold four numbers of sixteen keys, or sixteen numbers of four values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.execution.attention.base import LayerCache, zeros
from engine.scheduling.cache_layout import LayerShape

LANES: Final = 16
"""Keys, or numbers of a value, that lie together. Blocks hold a multiple of it, and heads are a multiple of it wide."""
WORD: Final = 4
"""Bytes of a 32-bit lane."""
MAX_HEAD_DIM: Final = 512
"""Widest head whose scores fit into int32, with queries of 16 bits (engine/execution/native/int8_attention.h)."""
SCALE_BYTES: Final = 4
_MAX_INT8 = 127


@dataclass(frozen=True, slots=True)
class Int8LayerCache(LayerCache):
    """Quantized keys and values of one layer. Both head dimensions are multiples of 16, as is the block size."""

    keys: Tensor  #: int8 ``[num_blocks, num_kv_heads, block_size / 16, head_dim / 4, 16 keys, 4 numbers]``
    values: Tensor  #: int8 ``[num_blocks, num_kv_heads, block_size / 4, value_head_dim / 16, 16 numbers, 4 values]``
    key_scales: Tensor  #: float32 ``[num_blocks, num_kv_heads, block_size]``
    value_scales: Tensor  #: float32 ``[num_blocks, num_kv_heads, block_size]``

    @classmethod
    def allocate(cls, shape: LayerShape, num_blocks: int, block_size: int, device: torch.device) -> Int8LayerCache:
        """Allocates a zeroed cache."""
        heads = (num_blocks, shape.num_kv_heads)
        return cls(
            keys=zeros((*heads, block_size // LANES, shape.head_dim // WORD, LANES, WORD), torch.int8, device),
            values=zeros((*heads, block_size // WORD, shape.value_head_dim // LANES, LANES, WORD), torch.int8, device),
            key_scales=zeros((*heads, block_size), torch.float32, device),
            value_scales=zeros((*heads, block_size), torch.float32, device),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, self.key_scales, self.value_scales

    @property
    def block_size(self) -> int:
        return self.key_scales.shape[2]

    @property
    def value_head_dim(self) -> int:
        return self.values.shape[3] * LANES

    @property
    def copies_whole_blocks(self) -> bool:
        return True

    def store(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        block, offset = slots // self.block_size, slots % self.block_size
        (key, key_scale), (value, value_scale) = quantize(keys), quantize(values)
        self.key_scales[block, :, offset] = key_scale
        self.value_scales[block, :, offset] = value_scale
        self.keys[block, :, offset // LANES, :, offset % LANES] = key.unflatten(-1, (-1, WORD))
        self.values[block, :, offset // WORD, :, :, offset % WORD] = value.unflatten(-1, (-1, LANES))

    def read(self, blocks: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Dequantizes blocks: keys and values ``[*blocks, block_size, num_kv_heads, head_dim]``."""
        keys, values = self.keys[blocks], self.values[blocks]
        keys = keys.movedim(-2, -3).flatten(-2).flatten(-3, -2)  # [*blocks, num_kv_heads, block_size, head_dim]
        values = values.movedim(-1, -3).flatten(-2).flatten(-3, -2)
        dequantized = (
            (numbers * scales[blocks].unsqueeze(-1)).to(dtype).transpose(-2, -3)
            for numbers, scales in ((keys, self.key_scales), (values, self.value_scales))
        )
        return next(dequantized), next(dequantized)


def quantize(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes each head of each token to int8, symmetrically.

    Args:
        heads: ``[num_tokens, num_heads, head_dim]``.

    Returns:
        int8 of the same shape, and float32 scales ``[num_tokens, num_heads]``: NaN for a head that has a number that is
        not finite.
    """
    heads = heads.float()
    scale = heads.abs().amax(-1) / _MAX_INT8
    scale = torch.where(heads.isfinite().all(-1), scale, torch.nan)
    divisor = torch.where(scale > 0, scale, 1.0).unsqueeze(-1)
    return (heads / divisor).round().nan_to_num(0.0).clamp(-_MAX_INT8, _MAX_INT8).to(torch.int8), scale


def int8_bytes(shape: LayerShape) -> int:
    """Returns the bytes that a token takes in one layer, scales included."""
    return shape.num_kv_heads * (shape.head_dim + shape.value_head_dim + 2 * SCALE_BYTES)


def check_kv_cache_dtype(kv_cache_dtype: str, device: torch.device) -> None:
    """Checks that a device's attention kernels read a cache of that dtype.

    Raises:
        ModelLoadError: they do not; the message says what to use.
    """
    if kv_cache_dtype == "fp8":
        raise ModelLoadError(
            "kv_cache_dtype=fp8 is not supported: no attention kernel of this version reads an fp8 cache. Use auto, or "
            "int8 on a CPU."
        )
    if kv_cache_dtype == "int8" and device.type != "cpu":
        raise ModelLoadError(
            f"kv_cache_dtype=int8 runs on CPUs only, and this model is to run on {device.type}: its attention kernels "
            "read keys and values in the model's dtype. Use kv_cache_dtype=auto."
        )


def check_int8_cache(shapes: tuple[LayerShape, ...], name: str, block_size: int) -> None:
    """Checks that a model's keys and values can be kept in int8.

    Raises:
        ModelLoadError: its heads are of another width, or the blocks of another size.
    """
    widths = {width for shape in shapes for width in (shape.head_dim, shape.value_head_dim)}
    if odd := sorted(width for width in widths if width % LANES or width > MAX_HEAD_DIM):
        raise ModelLoadError(
            f"kv_cache_dtype=int8 takes heads whose width is a multiple of {LANES} up to {MAX_HEAD_DIM}, but those of "
            f"{name} are {odd[0]} wide. Use kv_cache_dtype=auto."
        )
    if block_size % LANES:
        raise ModelLoadError(
            f"kv_cache_dtype=int8 needs a kv_block_size that is a multiple of {LANES} (got {block_size})."
        )
