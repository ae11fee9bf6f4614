"""Offers the experts of a checkpoint as transformers' modules hold them: all experts of a layer in one tensor.

Most checkpoints store each expert's matrices as tensors of their own. A layer's are read and stacked when they are
asked for, so that no more than one layer's lie in memory twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.model.tensors import BlockTensor, TensorSource

_EXPERT = re.compile(r"(?P<block>.+)\.experts\.(?P<expert>\d+)\.(?P<part>\w+)\.weight")
_PARTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
_STACKED = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
"""The tensor of all experts -> the parts of each expert that it consists of, one after the other."""


@dataclass(slots=True)
class _Experts:
    """The names of one layer's experts, by their part and number."""

    names: dict[str, dict[int, str]] = field(default_factory=lambda: {"gate": {}, "up": {}, "down": {}})

    def is_whole(self) -> bool:
        counts = {tuple(sorted(numbers)) for numbers in self.names.values()}
        return counts == {tuple(range(len(self.names["down"])))}


def stack_experts(source: TensorSource) -> TensorSource:
    """Returns a checkpoint's tensors, and for layers with experts those of all experts together."""
    layers: dict[str, _Experts] = {}
    names = list(source.names())
    for name in names:
        match = _EXPERT.fullmatch(name)
        if match and match["part"] in _PARTS and source.block_format(name) is None:
            parts = layers.setdefault(match["block"], _Experts()).names[_PARTS[match["part"]]]
            parts[int(match["expert"])] = name
    found = {block: experts for block, experts in layers.items() if experts.is_whole()}
    return _StackedExperts(source, names, found) if found else source


class _StackedExperts:
    """A :class:`engine.model.tensors.TensorSource`."""

    def __init__(self, source: TensorSource, names: Iterable[str], layers: dict[str, _Experts]) -> None:
        self._source = source
        self._stacked = {
            f"{block.replace('.block_sparse_moe', '.mlp')}.experts.{name}": [
                [experts.names[part][expert] for part in parts] for expert in range(len(experts.names["down"]))
            ]
            for block, experts in layers.items()
            for name, parts in _STACKED.items()
        }
        self._own: set[int] = set()  #: addresses of what was stacked, which no file can replace
        #: the router has the block's name, too
        self._stored = {name.replace(".block_sparse_moe.", ".mlp."): name for name in names}

    def names(self) -> Iterable[str]:
        return (*self._stored, *self._stacked)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._stacked:
            return self._source.shape(self._stored[name])
        experts = self._stacked[name]
        outputs = sum(self._source.shape(part)[0] for part in experts[0])
        return len(experts), outputs, *self._source.shape(experts[0][0])[1:]

    def block_format(self, name: str) -> str | None:
        return None if name in self._stacked else self._source.block_format(self._stored[name])

    def read(self, name: str) -> Tensor | BlockTensor:
        if name not in self._stacked:
            return self._source.read(self._stored[name])
        stacked = torch.empty(0)
        for expert, names in enumerate(self._stacked[name]):
            parts = [part for part in map(self._source.read, names) if isinstance(part, Tensor)]
            if expert == 0:
                stacked = torch.empty(self.shape(name), dtype=parts[0].dtype)
                self._own.add(stacked.untyped_storage().data_ptr())
            torch.cat(parts, out=stacked[expert])
            for part in parts:
                self._source.release(part)
        return stacked

    def release(self, part: Tensor) -> None:
        if part.untyped_storage().data_ptr() not in self._own:
            self._source.release(part)
