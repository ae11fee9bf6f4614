"""Packs the weights of models built like Llama in the layout that the C++ decoder reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.execution.native.structure import LANES, Structure, UnsupportedModel
from engine.model.linears import INT4_GROUP, to_int4, to_int8

TILE_WORDS = 16
"""Words of 32 bits in a row of an AMX tile; rows of weights and numbers are padded to whole tiles."""

_CACHE_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.bfloat16,
    "int4": torch.bfloat16,
}
"""The dtype of keys, values and embeddings for each number format of the weights."""


_ALIGNMENT = 64  #: bytes, a cache line
_PADDING_BYTES = 2**20


class HugePageArena:
    """Memory for tensors, one after another, in huge pages: with small pages the CPU waits for page table walks.

    Args:
        capacity: bytes; takes memory only where it is written.
    """

    def __init__(self, capacity: int) -> None:
        self._bytes = torch.from_numpy(np.empty(capacity, dtype=np.uint8))  # NumPy asks for pages of 2 MiB
        self._used = -self._bytes.data_ptr() % _ALIGNMENT

    def store(self, tensor: Tensor) -> Tensor:
        """Copies a tensor into the arena; returns the contiguous copy."""
        end = self._used + tensor.nbytes
        copy = self._bytes[self._used : end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._used = end + -end % _ALIGNMENT
        return copy


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The packed weight of a linear layer, or of several that read the same rows."""

    weight: Tensor  #: ``[outputs / 16, inputs / numbers in a word, 16, numbers in a word]``; 4-bit: two in a byte
    scales: (
        Tensor | None
    )  #: 8-bit weights: float32 ``[outputs]``; 4-bit weights: bfloat16 ``[outputs / 16, inputs / 32, 16]``
    weight_sums: Tensor | None  #: 8-bit weights: the sum of each output's weights, int32 ``[outputs]``
    bias: Tensor | None  #: float32 ``[outputs]``

    @classmethod
    def of(
        cls, linears: Sequence[nn.Linear], number_format: str, pages: HugePageArena, *, interleaved: bool = False
    ) -> PackedLinear:
        join = _interleave if interleaved else torch.cat
        weight = join([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        if len(biases) not in (0, len(linears)):
            raise UnsupportedModel("only some of the layers that read the same rows have a bias")
        bias = _pad_rows(join(biases).float()) if biases else None
        weight = _pad_rows(weight)
        match number_format:
            case "int8":
                steps, scales = to_int8(weight)
                return cls(pages.store(_pack_words(steps)), scales, steps.sum(1, dtype=torch.int32), bias)
            case "int4":
                if weight.shape[1] % INT4_GROUP:
                    raise UnsupportedModel(
                        f"the width of its rows is not a multiple of {INT4_GROUP}, the numbers that share a scale"
                    )
                codes, scales = to_int4(weight)
                return cls(pages.store(_pack_int4(codes)), pages.store(_pack_scales(scales)), None, bias)
        return cls(pages.store(_pack_words(weight)), None, None, bias)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    mlp_norm: Tensor
    qkv: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear  #: interleaved: :data:`LANES` outputs of the gate, then as many of up
    down: PackedLinear


class DecoderWeights:
    """A copy of a model's weights in the decoder's layout.

    Args:
        model: a causal language model, as transformers made it.
        structure: of that model.
        number_format: of the linear layers: ``float32``, ``bfloat16``, ``int8``, or ``int4``, with which the output
            layer has int8.

    Raises:
        UnsupportedModel: the decoder does not support the number format, or these sizes in it.
    """

    def __init__(self, model: Any, structure: Structure, number_format: str) -> None:
        self.structure = structure
        self.number_format = number_format
        body = model.model
        if body.embed_tokens.weight.dtype is not _CACHE_DTYPES.get(number_format):
            raise UnsupportedModel(f"{number_format} is not supported with {body.embed_tokens.weight.dtype} embeddings")
        # The output layer may be a second copy of the embedding, and narrow rows are padded to whole tiles.
        self._pages = HugePageArena(4 * sum(part.nbytes for part in model.parameters()) + _PADDING_BYTES)
        self.embedding = body.embed_tokens.weight.detach().clone()
        self.norm = _norm_weight(body.norm)
        self.layers = tuple(self._layer(layer) for layer in body.layers)
        # int8 instead of int4: no later layer averages out the errors of the output layer.
        of_head = "int8" if number_format == "int4" else number_format
        self.lm_head = PackedLinear.of([model.lm_head], of_head, self._pages)

    def _layer(self, layer: Any) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        return LayerWeights(
            attention_norm=_norm_weight(layer.input_layernorm),
            query_norm=_norm_weight(attention.q_norm) if hasattr(attention, "q_norm") else None,
            key_norm=_norm_weight(attention.k_norm) if hasattr(attention, "k_norm") else None,
            mlp_norm=_norm_weight(layer.post_attention_layernorm),
            qkv=self._pack(attention.q_proj, attention.k_proj, attention.v_proj),
            output=self._pack(attention.o_proj),
            gate_up=self._pack(mlp.gate_proj, mlp.up_proj, interleaved=True),
            down=self._pack(mlp.down_proj),
        )

    def _pack(self, *linears: nn.Linear, interleaved: bool = False) -> PackedLinear:
        return PackedLinear.of(linears, self.number_format, self._pages, interleaved=interleaved)


def _norm_weight(norm: Any) -> Tensor:
    """Returns a copy of an RMS norm's weight in float32."""
    weight: Tensor = norm.weight.detach().float().clone()
    return weight


def _interleave(parts: Sequence[Tensor]) -> Tensor:
    """Joins parts of ``[n, ...]`` to ``[len(parts) * n, ...]``: the first :data:`LANES` of each, then the next."""
    return torch.stack([part.reshape(-1, LANES, *part.shape[1:]) for part in parts], 1).flatten(0, 2)


def _pad_rows(rows: Tensor) -> Tensor:
    """Pads with zeros to a multiple of :data:`LANES` rows."""
    return torch.cat([rows, rows.new_zeros(-len(rows) % LANES, *rows.shape[1:])])


def _pack_words(weight: Tensor) -> Tensor:
    """Lays out ``[outputs, inputs]`` as ``PackedLinear.weight``, padded with zeros to whole tiles of words."""
    numbers = 4 // weight.itemsize
    weight = nn.functional.pad(weight, (0, -weight.shape[1] % (TILE_WORDS * numbers)))
    return weight.view(len(weight) // LANES, LANES, -1, numbers).transpose(1, 2)


def _pack_int4(codes: Tensor) -> Tensor:
    """Packs int8 ``[outputs, inputs]``, -8 to 7, as unsigned ``[outputs / 16, inputs / 32, 4, 16, 4]``, two in a byte.

    The first half of each group of 32 inputs is in the lower bits, the second half in the upper.
    """
    codes = nn.functional.pad(codes + 8, (0, -codes.shape[1] % (TILE_WORDS * 4))).to(torch.uint8)
    lower, upper = codes.view(len(codes) // LANES, LANES, -1, 2, 4, 4).unbind(3)
    return (lower | upper << 4).permute(0, 2, 3, 1, 4)


def _pack_scales(scales: Tensor) -> Tensor:
    """Packs ``[outputs, groups]`` as bfloat16 ``[outputs / 16, groups, 16]``, padded with zeros to whole tiles."""
    scales = nn.functional.pad(scales, (0, -scales.shape[1] % (TILE_WORDS * 4 // INT4_GROUP)))
    return scales.view(len(scales) // LANES, LANES, -1).transpose(1, 2).to(torch.bfloat16)
