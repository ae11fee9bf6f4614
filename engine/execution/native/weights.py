"""Packs the weights of models built like Llama in the layout that the C++ decoder reads."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.execution.native.block_packing import (
    FORMATS,
    REPACKED_FORMAT,
    pack_panels,
    packed_bytes,
    to_packable,
)
from engine.execution.native.modules import DecoderModules, LayerModules, UnsupportedModel, norm_weight
from engine.execution.native.structure import LANES, Structure
from engine.model.linears import INT4_GROUP, to_int4, to_int8
from engine.model.tensors import BlockTensor, TensorSource

log = logging.getLogger(__name__)

TILE_WORDS = 16
"""Words of 32 bits in a row of an AMX tile; rows of weights and numbers are padded to whole tiles."""

_CACHE_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.bfloat16,
    "int4": torch.bfloat16,
    "blocks": torch.bfloat16,
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

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns a tensor in the arena, whose contents are undefined."""
        end = self._used + math.prod(shape) * dtype.itemsize
        found = self._bytes[self._used : end].view(dtype).view(*shape)
        self._used = end + -end % _ALIGNMENT
        return found

    def store(self, tensor: Tensor) -> Tensor:
        """Copies a tensor into the arena; returns the contiguous copy."""
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The packed weight of a linear layer, or of several that read the same rows."""

    weight: Tensor
    """``[outputs / 16, inputs / numbers in a word, 16, numbers in a word]``; 4-bit: two in a byte; block formats: the
    table of panels, ``[outputs / 16, 3]``."""
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
        weight = _pad_rows(join([linear.weight.detach() for linear in linears]))
        bias = _join_biases(linears, interleaved=interleaved)
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
    attention_norm: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output_norm: Tensor | None
    mlp_norm: Tensor | None
    mlp_output_norm: Tensor | None
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
            layer has int8; or ``blocks``, with which each weight has a block format of its own, the embedding too.
        tensors: with ``blocks``, the weights of linear layers and the embedding, instead of the model's.

    Raises:
        UnsupportedModel: the decoder does not support the number format, or these sizes in it.
    """

    def __init__(
        self, model: Any, structure: Structure, number_format: str, tensors: TensorSource | None = None
    ) -> None:
        self.structure = structure
        self.number_format = number_format
        modules = DecoderModules.of(model)
        dtype = modules.embedding.weight.dtype
        self._blocks: dict[nn.Module, Tensor | BlockTensor] = {}  #: what is not packed yet
        if tensors is not None:
            self._blocks, self._release = _read_blocks(model, modules, tensors), tensors.release
            _log_repacked(self._blocks.values())
        elif dtype is not _CACHE_DTYPES.get(number_format):
            raise UnsupportedModel(f"{number_format} is not supported with {dtype} embeddings")
        # The output layer may be a second copy of the embedding, and narrow rows are padded to whole tiles.
        capacity = sum(map(packed_bytes, self._blocks.values())) or 4 * sum(one.nbytes for one in model.parameters())
        self._pages = HugePageArena(capacity + _PADDING_BYTES)
        self.norm = norm_weight(modules.norm)
        self.layers = tuple(self._layer(layer) for layer in modules.layers)
        if number_format == "blocks":
            self.embedding, self.lm_head = self._pack_ends(modules.embedding, modules.lm_head)
        else:
            self.embedding = modules.embedding.weight.detach().clone()
            # int8 instead of int4: no later layer averages out the errors of the output layer.
            of_head = "int8" if number_format == "int4" else number_format
            self.lm_head = PackedLinear.of([modules.lm_head], of_head, self._pages)

    def _layer(self, layer: LayerModules) -> LayerWeights:
        norms = {
            name: None if (norm := getattr(layer, name)) is None else norm_weight(norm)
            for name in (
                *("attention_norm", "query_norm", "key_norm"),
                *("attention_output_norm", "mlp_norm", "mlp_output_norm"),
            )
        }
        return LayerWeights(
            **norms,
            qkv=self._pack(*layer.qkv),
            output=self._pack(layer.output),
            gate_up=self._pack(*layer.gate_up, interleaved=True),
            down=self._pack(layer.down),
        )

    def _pack(self, *linears: nn.Linear, interleaved: bool = False) -> PackedLinear:
        if self.number_format != "blocks":
            return PackedLinear.of(linears, self.number_format, self._pages, interleaved=interleaved)
        panels = self._pack_panels(linears, interleaved=interleaved)
        return PackedLinear(panels, None, None, _join_biases(linears, interleaved=interleaved))

    def _pack_ends(self, embedding: nn.Module, lm_head: nn.Linear) -> tuple[Tensor, PackedLinear]:
        """Packs the embedding and the output layer in block formats; tied layers share their panels."""
        panels = self._pack_panels([embedding])
        if lm_head in self._blocks:
            return panels, self._pack(lm_head)
        return panels, PackedLinear(panels, None, None, _join_biases([lm_head]))

    def _pack_panels(self, modules: Sequence[nn.Module], *, interleaved: bool = False) -> Tensor:
        weights = [self._blocks.pop(module) for module in modules]
        panels = pack_panels([to_packable(weight) for weight in weights], self._pages, interleaved=interleaved)
        for weight in weights:
            self._release(weight.blocks if isinstance(weight, BlockTensor) else weight)
        return panels


def _read_blocks(model: Any, modules: DecoderModules, tensors: TensorSource) -> dict[nn.Module, Tensor | BlockTensor]:
    """Returns the weights of linear layers and the embedding; a tied output layer has none of its own."""
    stored = set(tensors.names())
    return {
        module: tensors.read(f"{name}.weight")
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
        and (module is not modules.lm_head or f"{name}.weight" in stored)
    }


def _log_repacked(weights: Iterable[Tensor | BlockTensor]) -> None:
    names = {weight.format if isinstance(weight, BlockTensor) else str(weight.dtype) for weight in weights}
    if repacked := sorted(names - FORMATS.keys()):
        log.info("weights in %s are repacked as %s", ", ".join(repacked), REPACKED_FORMAT)


def _join_biases(linears: Sequence[nn.Linear], *, interleaved: bool = False) -> Tensor | None:
    """Returns the biases of layers that read the same rows, float32, padded; None if they have none."""
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    if len(biases) not in (0, len(linears)):
        raise UnsupportedModel("only some of the layers that read the same rows have a bias")
    join = _interleave if interleaved else torch.cat
    return _pad_rows(join(biases).float()) if biases else None


def _interleave(parts: Sequence[Tensor]) -> Tensor:
    """Joins gate and up ``[n, ...]``, apart or one after the other, to ``[2 * n, ...]``.

    The first :data:`LANES` of each come first, then the next.
    """
    if len(parts) == 1:
        parts = parts[0].chunk(2)
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
