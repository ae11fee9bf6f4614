"""Packs LoRA adapters in the layout that the C++ decoder adds to its products; ``lora.h`` describes it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.execution.native.modules import LayerNames
from engine.execution.native.structure import LANES, Structure
from engine.model.peft_folder import LoraPair

RANK_STEP = 8
"""Ranks are padded with zeros to a multiple; ``kRankStep`` of lora.h."""


class LoraLinear(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "first")),
        *((name, ctypes.c_int64) for name in ("num_inputs", "num_shrunk", "rank")),
    )


class LoraLayer(ctypes.Structure):
    _fields_ = tuple((name, LoraLinear) for name in ("qkv", "output", "gate_up", "down"))


class PackedAdapter:
    """An adapter in the decoder's layout.

    Args:
        structure: of its model.
        pairs: by the names of :func:`linear_sizes`.
    """

    def __init__(self, structure: Structure, pairs: Mapping[str, LoraPair]) -> None:
        self._tensors: list[Tensor] = []  # kept alive: the structures hold addresses only
        self.max_shrunk = 0  #: numbers of a shrunk row, at most
        layers = [
            LoraLayer(*(self._pack(group, pairs) for group in _groups(structure, names)))
            for names in structure.names.layers
        ]
        self._layers = (LoraLayer * len(layers))(*layers)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._layers)

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors)

    def _pack(self, group: _Group, pairs: Mapping[str, LoraPair]) -> LoraLinear:
        parts = [pairs.get(name) for name in group.sizes]
        found = [pair for pair in parts if pair is not None]
        if not found:
            return LoraLinear()
        rank = max(-(-len(pair.a) // RANK_STEP) * RANK_STEP for pair in found)
        inputs = found[0].a.shape[1]
        a = torch.zeros(len(found), rank, inputs)
        panels, firsts, first = [], [], 0
        for pair, (outputs, _inputs) in zip(parts, group.sizes.values(), strict=True):
            own = torch.zeros(outputs // LANES, rank, LANES)
            if pair is not None:
                a[first // rank, : len(pair.a)] = pair.a
                own[:, : len(pair.a)] = pair.b.unflatten(0, (-1, LANES)).transpose(1, 2)
            panels.append(own)
            firsts.append(torch.full((len(own),), -1 if pair is None else first, dtype=torch.int32))
            first += 0 if pair is None else rank
        b, starts = (_join(each, interleaved=group.interleaved) for each in (panels, firsts))
        self._tensors += (a, b, starts)
        self.max_shrunk = max(self.max_shrunk, first)
        return LoraLinear(a.data_ptr(), b.data_ptr(), starts.data_ptr(), inputs, first, rank)


def linear_sizes(structure: Structure) -> dict[str, tuple[int, int]]:
    """Returns the outputs and inputs of each linear layer that can be adapted: all but experts and the output layer."""
    return {
        name: size
        for names in structure.names.layers
        for group in _groups(structure, names)
        for name, size in group.sizes.items()
    }


class _Group(NamedTuple):
    """Linear layers that read the same rows and are packed as one; see ``DecoderWeights``."""

    sizes: dict[str, tuple[int, int]]  #: outputs and inputs of each, by name
    interleaved: bool = False


def _groups(structure: Structure, names: LayerNames) -> Iterator[_Group]:
    """Yields the groups of a layer, in the order of :class:`LoraLayer`; empty ones in place of experts."""
    queries, hidden, inner = structure.qkv_sizes[0], structure.hidden, structure.intermediate
    yield _Group(_sizes(names.qkv, structure.qkv_sizes, hidden))
    yield _Group({names.output: (hidden, queries)})
    yield _Group(_sizes(names.gate_up, (inner, inner), hidden), interleaved=True)
    yield _Group({} if names.down is None else {names.down: (hidden, inner)})


def _sizes(names: Sequence[str], outputs: Sequence[int], inputs: int) -> dict[str, tuple[int, int]]:
    """Returns the sizes of linear layers that read the same rows; one layer may have the outputs of all."""
    if len(names) == 1:
        return {names[0]: (sum(outputs), inputs)}
    return {name: (size, inputs) for name, size in zip(names, outputs, strict=bool(names))}


def _join(panels: Sequence[Tensor], *, interleaved: bool) -> Tensor:
    """Joins the panels of linear layers; interleaved, those of each in turn, or of both halves of a single one."""
    if not interleaved:
        return torch.cat(list(panels))
    halves = panels[0].chunk(2) if len(panels) == 1 else panels
    return torch.stack(list(halves), dim=1).flatten(0, 1).contiguous()
