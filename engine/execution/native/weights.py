"""Packs the weights of models in the layout that the C++ decoder reads.

Weights are read from the checkpoint one after another, and some outputs at a time, so that hardly more than the packed
result lies in memory.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.execution.native.block_packing import (
    FORMATS,
    REPACKED_FORMAT,
    dequantize_panels,
    pack_panels,
    to_packable,
)
from engine.execution.native.build import cpu_features
from engine.execution.native.modules import NORMS, ExpertLayout, LayerNames, NormName, UnsupportedModel
from engine.execution.native.structure import LANES, Structure
from engine.model.gguf.dequantize import dequantize
from engine.model.linears import INT4_GROUP, to_int4, to_int8
from engine.model.tensors import BlockTensor, ExpertBlocksSource, TensorSource

log = logging.getLogger(__name__)

TILE_WORDS = 16
"""Words of 32 bits in a row of an AMX tile; rows of weights and numbers are padded to whole tiles."""
AMX_ROWS, SIMD_ROWS = 16, 12
"""Rows that matrix units and SIMD registers multiply at once (``gemm.h``)."""
CACHE_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.bfloat16,
    "int4": torch.bfloat16,
    "blocks": torch.bfloat16,
}
"""The dtype of keys, values and embeddings for each number format of the weights."""


_ALIGNMENT = 64  #: bytes, a cache line
_SLAB_BYTES = 2**26
_NUMBERS_AT_ONCE = 2**20
"""Weights that are packed at once, at most: what lies in memory beside the packed result."""

Served = Callable[[int, int, Tensor], None]
"""Called with the weights as they are served, dequantized, part by part: the index of the linear layer in its group,
the first of these outputs, and their rows, ``[n, inputs]``."""


class HugePageArena:
    """Memory for tensors, one after another, in huge pages: with small pages the CPU waits for page table walks.

    It grows by slabs, which take memory only where they are written, and live as long as it: panels of block formats
    are known by their addresses alone.
    """

    def __init__(self) -> None:
        self._slabs: list[Tensor] = []
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns a tensor in the arena, whose contents are undefined."""
        size = math.prod(shape) * dtype.itemsize
        if self._used + size > len(self._slab):
            # NumPy asks for pages of 2 MiB.
            self._slab = torch.from_numpy(np.empty(max(size, _SLAB_BYTES) + _ALIGNMENT, dtype=np.uint8))
            self._slabs.append(self._slab)
            self._used = -self._slab.data_ptr() % _ALIGNMENT
        found = self._slab[self._used : self._used + size].view(dtype).view(*shape)
        self._used += size + -size % _ALIGNMENT
        return found

    def store(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Copies a tensor into the arena; returns the contiguous copy."""
        return self.empty(tensor.shape, dtype).copy_(tensor)


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
        cls,
        weights: Sequence[Tensor | BlockTensor],
        biases: Sequence[Tensor],
        number_format: str,
        pages: HugePageArena,
        *,
        interleaved: bool = False,
        served: Served | None = None,
        release: Callable[[Tensor], None] | None = None,
    ) -> PackedLinear:
        """Packs the weights of linear layers, some of their outputs at a time.

        Args:
            weights: ``[outputs, inputs]`` each, of any dtype: weights and biases are first rounded to the dtype of the
                format's embeddings, as transformers rounds them on loading.
            biases: of all these layers, or of none.
            pages: gets the packed weights.
            interleaved: :data:`LANES` outputs of each layer in turn, instead of one layer after another; of a single
                layer, :data:`LANES` of its first and of its second half.
            served: see :data:`Served`.
            release: called with rows of ``weights`` that will not be read again.
        """
        parts = _parts([_dense(weight) for weight in weights], interleaved)
        packing = _Packing(number_format, sum(len(part.rows) for part in parts), parts[0].rows.shape[1], pages)
        for chunks in _chunks(parts, interleaved):
            quantized = [packing.quantize(rows) for _linear, _start, rows in chunks]
            if served is not None:
                for (linear, start, _rows), numbers in zip(chunks, quantized, strict=True):
                    served(linear, start, packing.dequantize(numbers))
            packing.append(quantized)
            if release is not None:
                for _linear, _start, rows in chunks:
                    release(rows)
        return cls(*packing.finish(), _join_biases(biases, len(weights), number_format, interleaved))

    @classmethod
    def of_blocks(
        cls,
        weights: Sequence[Tensor | BlockTensor],
        biases: Sequence[Tensor],
        pages: HugePageArena,
        *,
        interleaved: bool = False,
        served: Served | None = None,
    ) -> PackedLinear:
        """Packs the weights of linear layers in block formats of their own; see :meth:`of`."""
        panels = pack_panels([to_packable(weight) for weight in weights], pages, interleaved=interleaved)
        packed = cls(panels, None, None, _join_biases(biases, len(weights), "blocks", interleaved))
        if served is not None:
            packed.serve_blocks([_size(weight) for weight in weights], served, interleaved=interleaved)
        return packed

    def serve_blocks(self, sizes: Sequence[tuple[int, int]], served: Served, *, interleaved: bool = False) -> None:
        """Calls ``served`` with the weights of packed blocks, of layers of these outputs and inputs."""
        first = 0
        for linear, (outputs, inputs) in enumerate(sizes):
            step = max(_NUMBERS_AT_ONCE // inputs // LANES, 1) * LANES
            if not interleaved:
                for start in range(0, outputs, step):
                    stop = min(start + step, outputs)
                    served(linear, start, dequantize_panels(self.weight, inputs, first + start, first + stop))
                first += -(-outputs // LANES) * LANES
                continue
            # Layers take turns, or the halves of one layer.
            count = max(len(sizes), 2)
            for half in range(count // len(sizes)):
                table = self.weight[(linear + half) :: count].contiguous()
                length = outputs * len(sizes) // count
                for start in range(0, length, step):
                    stop = min(start + step, length)
                    served(linear, half * length + start, dequantize_panels(table, inputs, start, stop))


@dataclass(frozen=True, slots=True)
class _Part:
    """Outputs of a linear layer that are packed one after another."""

    linear: int  #: index of the layer in its group
    first: int  #: output of the layer
    rows: Tensor  #: ``[outputs, inputs]``


def _parts(weights: Sequence[Tensor], interleaved: bool) -> list[_Part]:
    if interleaved and len(weights) == 1:
        half = len(weights[0]) // 2
        return [_Part(0, first, weights[0][first : first + half]) for first in (0, half)]
    return [_Part(index, 0, weight) for index, weight in enumerate(weights)]


class _Packing:
    """Packs rows of one weight, chunk after chunk."""

    def __init__(self, number_format: str, outputs: int, inputs: int, pages: HugePageArena) -> None:
        if number_format == "int4" and inputs % INT4_GROUP:
            raise UnsupportedModel(
                f"the width of its rows is not a multiple of {INT4_GROUP}, the numbers that share a scale"
            )
        self._format = number_format
        self._dtype = CACHE_DTYPES[number_format]
        lanes = -(-outputs // LANES)
        numbers = {"float32": 1, "bfloat16": 2}.get(number_format, 4)  # in a word, as a product reads them
        words = -(-inputs // (TILE_WORDS * numbers)) * TILE_WORDS
        self._scales: Tensor | None = None
        self._sums: Tensor | None = None
        match number_format:
            case "int4":
                groups = words * numbers // INT4_GROUP
                self._weight = pages.empty((lanes, groups, 4, LANES, 4), torch.uint8)
                self._scales = pages.empty((lanes, groups, LANES), torch.bfloat16)
            case "int8":
                self._weight = pages.empty((lanes, words, LANES, numbers), torch.int8)
                self._scales = torch.empty(lanes * LANES)
                self._sums = torch.empty(lanes * LANES, dtype=torch.int32)
            case _:
                self._weight = pages.empty((lanes, words, LANES, numbers), self._dtype)
        self._packed = 0  #: groups of LANES outputs

    def quantize(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Returns rows in the number format: weights, and the scales of 8-bit and 4-bit weights."""
        rows = rows.to(self._dtype)
        match self._format:
            case "int8":
                return to_int8(rows)
            case "int4":
                return to_int4(rows)
        return (rows,)

    def dequantize(self, quantized: tuple[Tensor, ...]) -> Tensor:
        """Returns the weights that the number format represents, ``[n, inputs]``."""
        weight, *scales = quantized
        match self._format:
            case "int8":
                return weight * scales[0].unsqueeze(1)
            case "int4":
                groups = weight.view(len(weight), -1, INT4_GROUP)
                return (groups * scales[0].unsqueeze(2)).flatten(1)
        return weight

    def append(self, parts: Sequence[tuple[Tensor, ...]]) -> None:
        """Packs quantized rows; those of several parts are interleaved."""
        weight, *scales = (
            _pad_rows(_interleave(same) if len(same) > 1 else same[0]) for same in zip(*parts, strict=True)
        )
        at = slice(self._packed, self._packed + len(weight) // LANES)
        outputs = slice(at.start * LANES, at.stop * LANES)
        self._weight[at] = _pack_int4(weight) if self._format == "int4" else _pack_words(weight)
        if self._scales is not None and self._sums is not None:
            self._scales[outputs] = scales[0]
            self._sums[outputs] = weight.sum(1, dtype=torch.int32)
        elif self._scales is not None:
            self._scales[at] = _pack_scales(scales[0])
        self._packed = at.stop

    def finish(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the packed weight, its scales and its sums."""
        assert self._packed == len(self._weight)
        return self._weight, self._scales, self._sums


def _chunks(parts: Sequence[_Part], interleaved: bool) -> Iterator[list[tuple[int, int, Tensor]]]:
    """Yields what is packed at once, rows of a part, or of each part if they are interleaved: the linear layer, the
    first of its outputs, and its rows.

    Each starts at a multiple of :data:`LANES` outputs of the packed weight.
    """
    together = len(parts) if interleaved else 1
    step = max(_NUMBERS_AT_ONCE // (parts[0].rows.shape[1] * together) // LANES, 1) * LANES
    for first in range(0, len(parts), together):
        for start in range(0, len(parts[first].rows), step):
            yield [
                (part.linear, part.first + start, part.rows[start : start + step])
                for part in parts[first : first + together]
            ]


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
    sinks: Tensor | None  #: float32 ``[num_heads]``
    gate_up: PackedLinear | None  #: interleaved: :data:`LANES` outputs of the gate, then as many of up
    down: PackedLinear | None
    experts: ExpertWeights | None  #: in place of gate, up and down


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights of a mixture of experts."""

    router: Tensor  #: ``[num_experts, hidden]``, in the dtype of the embedding
    router_bias: Tensor | None  #: float32 ``[num_experts]``
    gate_up: tuple[PackedLinear, ...]  #: of each expert, interleaved as in :class:`LayerWeights`
    down: tuple[PackedLinear, ...]


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Linear layers that read the same rows and are packed as one."""

    names: tuple[str, ...]
    number_format: str
    interleaved: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(f"{name}.weight" for name in self.names)


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """The same linear layers of all experts: gate and up, or the last one. Each expert's are packed as one."""

    parameter: str  #: ``[num_experts, ...]``
    number_format: str
    layout: ExpertLayout
    interleaved: bool  #: whether they are gate and up

    @property
    def parameters(self) -> tuple[str, ...]:
        return (self.parameter,)


class DecoderWeights:
    """A model's weights in the decoder's layout.

    Embedding and norms are there at once; :meth:`pack` adds each of :attr:`groups`, so that a check can follow.

    Args:
        tensors: of the model, by the names of its parameters.
        structure: of that model.
        number_format: of the linear layers: ``float32``, ``bfloat16``, ``int8``, or ``int4``, with which the output
            layer has int8; or ``blocks``, with which each weight has a block format of its own, the embedding too.
        dtype: of the model's other numbers.

    Raises:
        UnsupportedModel: the decoder does not support the number format, or these sizes in it.
    """

    def __init__(self, tensors: TensorSource, structure: Structure, number_format: str, dtype: torch.dtype) -> None:
        if dtype is not CACHE_DTYPES.get(number_format):
            raise UnsupportedModel(f"{number_format} is not supported with {dtype} embeddings")
        self.structure = structure
        self.number_format = number_format
        self.dtype = dtype  #: of keys and values
        self._tensors = tensors
        self._names = frozenset(tensors.names())
        self._pages = HugePageArena()
        self._packed: dict[LinearGroup, PackedLinear] = {}
        self._packed_experts: dict[ExpertGroup, tuple[PackedLinear, ...]] = {}
        names = structure.names
        self._embedding_address = 0  #: of packed blocks that the output layer may share
        self.embedding = self._pack_embedding(tensors.read(f"{names.embedding}.weight"))
        self.norm = self._norm(names.norm)
        self._layers = [self._layer_groups(layer) for layer in names.layers]
        # int8 instead of int4: no later layer averages out the errors of the output layer.
        self._head = LinearGroup((names.lm_head,), "int8" if number_format == "int4" else number_format)
        #: in the order in which a step computes them
        self.groups: tuple[LinearGroup | ExpertGroup, ...] = (
            *(group for layer in self._layers for group in layer),
            self._head,
        )

    @property
    def tile_rows(self) -> int:
        """Rows that the products compute at once on this processor, as :attr:`number_format` has them."""
        has_tiles = self.number_format in ("bfloat16", "int8") and "amx_tile" in cpu_features()
        return AMX_ROWS if has_tiles or self.number_format == "blocks" else SIMD_ROWS

    def pack(self, group: LinearGroup | ExpertGroup, served: Served | None = None) -> None:
        """Packs linear layers. Those of experts are counted expert by expert for ``served``."""
        if isinstance(group, ExpertGroup):
            self._packed_experts[group] = tuple(self._pack_experts(group, served))
            return
        biases = [_dense(self._tensors.read(name)) for name in self._bias_names(group)]
        weights = [self._tensors.read(f"{name}.weight") for name in group.names]
        if group.number_format != "blocks":
            self._packed[group] = PackedLinear.of(
                weights,
                biases,
                group.number_format,
                self._pages,
                interleaved=group.interleaved,
                served=served,
                release=self._tensors.release,
            )
            return
        if group is self._head and _address(weights[0]) == self._embedding_address:
            # Tied: the panels of the embedding serve both.
            shared = PackedLinear(self.embedding, None, None, _join_biases(biases, 1, "blocks", interleaved=False))
            if served is not None:
                shared.serve_blocks([_size(weights[0])], served)
            self._packed[group] = shared
        else:
            self._packed[group] = PackedLinear.of_blocks(
                weights, biases, self._pages, interleaved=group.interleaved, served=served
            )
        for weight in weights:
            self._release(weight)

    def seal(self) -> None:
        """Lets go of the checkpoint, once everything is packed."""
        _ = self.layers
        del self._tensors

    @cached_property
    def layers(self) -> tuple[LayerWeights, ...]:
        """All layers; their groups are packed."""
        return tuple(map(self._layer, self.structure.names.layers, self._layers))

    def _layer(self, names: LayerNames, groups: Sequence[LinearGroup | ExpertGroup]) -> LayerWeights:
        norms = {name: None if (norm := getattr(names, name)) is None else self._norm(norm) for name in NORMS}
        packed: dict[str, Any] = {
            name: self._packed[group] if isinstance(group, LinearGroup) else self._packed_experts[group]
            for name, group in zip(("qkv", "output", "gate_up", "down"), groups, strict=True)
        }
        if names.router is not None:
            bias = f"{names.router}.bias"
            packed["experts"] = ExpertWeights(
                router=_dense(self._tensors.read(f"{names.router}.weight")).to(self.dtype, copy=True),
                router_bias=self._rounded(bias) if bias in self._names else None,
                gate_up=packed.pop("gate_up"),
                down=packed.pop("down"),
            )
        sinks = None if names.sinks is None else self._rounded(names.sinks)
        return LayerWeights(**{"gate_up": None, "down": None, "experts": None, **norms, **packed, "sinks": sinks})

    @property
    def lm_head(self) -> PackedLinear:
        return self._packed[self._head]

    def log_repacked(self) -> None:
        """Logs which formats of the file had to be repacked in another."""
        if self.number_format != "blocks":
            return
        formats = {format_ for group in self.groups for format_ in self._formats(group)}
        if repacked := sorted(formats - FORMATS.keys()):
            log.info("weights in %s are repacked as %s", ", ".join(repacked), REPACKED_FORMAT)

    def _formats(self, group: LinearGroup | ExpertGroup) -> Iterator[str]:
        """Yields the formats of a group's weights in the file."""
        blocks = self._expert_blocks(group) if isinstance(group, ExpertGroup) else None
        if blocks is not None:
            yield from (part.format for part in blocks[0])
        else:
            yield from (self._tensors.block_format(name) or "unquantized numbers" for name in group.parameters)

    def _pack_embedding(self, weight: Tensor | BlockTensor) -> Tensor:
        if self.number_format == "blocks":
            self._embedding_address = _address(weight)
            packed = pack_panels([to_packable(weight)], self._pages)
        else:
            packed = self._pages.store(_dense(weight), self.dtype)
        self._release(weight)
        return packed

    def _bias_names(self, group: LinearGroup) -> list[str]:
        return [f"{name}.bias" for name in group.names if f"{name}.bias" in self._names]

    def _release(self, weight: Tensor | BlockTensor) -> None:
        self._tensors.release(weight.blocks if isinstance(weight, BlockTensor) else weight)

    def _norm(self, norm: NormName) -> Tensor:
        """Returns what an RMS norm multiplies by, in float32, rounded as the model rounds it."""
        weight = self._rounded(f"{norm.name}.weight")
        return weight + 1 if norm.adds_one else weight

    def _rounded(self, name: str) -> Tensor:
        """Returns a tensor in float32, rounded as the model rounds it."""
        return _dense(self._tensors.read(name)).to(self.dtype).to(torch.float32, copy=True)

    def _layer_groups(self, layer: LayerNames) -> tuple[LinearGroup | ExpertGroup, ...]:
        attention = (LinearGroup(layer.qkv, self.number_format), LinearGroup((layer.output,), self.number_format))
        if layer.experts is not None:
            name, layout = layer.experts.name, layer.experts.layout
            return (
                *attention,
                ExpertGroup(f"{name}.gate_up_proj", self.number_format, layout, interleaved=True),
                ExpertGroup(f"{name}.down_proj", self.number_format, layout, interleaved=False),
            )
        assert layer.down is not None
        return (
            *attention,
            LinearGroup(layer.gate_up, self.number_format, interleaved=True),
            LinearGroup((layer.down,), self.number_format),
        )

    def _pack_experts(self, group: ExpertGroup, served: Served | None) -> Iterator[PackedLinear]:
        bias = f"{group.parameter}_bias"
        biases = _dense(self._tensors.read(bias)) if bias in self._names else None
        for expert, parts in enumerate(self._expert_matrices(group)):
            own_biases: Sequence[Tensor] = ()
            if biases is not None:
                own_biases = group.layout.split(biases[expert]) if group.interleaved else (biases[expert],)
            own = None if served is None else _of_expert(served, expert * len(parts))
            if group.number_format == "blocks":
                yield PackedLinear.of_blocks(parts, own_biases, self._pages, interleaved=group.interleaved, served=own)
                for part in parts:
                    if isinstance(part, BlockTensor):
                        self._release(part)
            else:
                yield PackedLinear.of(
                    parts, own_biases, group.number_format, self._pages, interleaved=group.interleaved, served=own
                )

    def _expert_matrices(self, group: ExpertGroup) -> Iterator[Sequence[Tensor | BlockTensor]]:
        """Yields the matrices of each expert, ``[outputs, inputs]``: gate and up, or the last one."""
        blocks = self._expert_blocks(group)
        if blocks is not None:
            yield from blocks
            return
        stored = _dense(self._tensors.read(group.parameter))
        for own in stored:
            weight = group.layout.matrix(own)
            yield group.layout.split(weight) if group.interleaved else (weight,)
        self._release(stored)

    def _expert_blocks(self, group: ExpertGroup) -> Sequence[Sequence[BlockTensor]] | None:
        if group.number_format != "blocks" or not isinstance(self._tensors, ExpertBlocksSource):
            return None
        return self._tensors.read_expert_blocks(group.parameter)


def _of_expert(served: Served, first: int) -> Served:
    """Returns a function that counts linear layers from ``first`` on."""
    return lambda linear, start, rows: served(first + linear, start, rows)


def _dense(tensor: Tensor | BlockTensor) -> Tensor:
    return dequantize(tensor) if isinstance(tensor, BlockTensor) else tensor


def _size(weight: Tensor | BlockTensor) -> tuple[int, int]:
    """Returns the numbers of outputs and inputs."""
    if isinstance(weight, BlockTensor):
        return len(weight.blocks), weight.inputs
    return weight.shape[0], weight.shape[1]


def _address(weight: Tensor | BlockTensor) -> int:
    return (weight.blocks if isinstance(weight, BlockTensor) else weight).data_ptr()


def _join_biases(biases: Sequence[Tensor], count: int, number_format: str, interleaved: bool) -> Tensor | None:
    """Returns the biases of ``count`` layers, float32, padded; None if they have none."""
    if len(biases) not in (0, count):
        raise UnsupportedModel("only some of the layers that read the same rows have a bias")
    if not biases:
        return None
    join = _interleave if interleaved else torch.cat
    return _pad_rows(join([bias.to(CACHE_DTYPES[number_format]).float() for bias in biases]))


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
