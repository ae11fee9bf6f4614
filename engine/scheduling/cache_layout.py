"""Which layers share block tables, and which share memory.

Layers that see equally far form a group: a request has one block table for each group, so that a group with a
sliding window can give back blocks that no later token sees, while one with full attention keeps its own.

All groups draw from one pool. Where all layers store equally much, groups are cut to equal size and the n-th
layers of all groups share one tensor: a block number belongs to one group at a time, so they never meet (the idea
is vLLM's hybrid cache). Where layers differ in what they store, there is one group and a tensor for each layer,
and windows are only masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_GROUPS = 8
"""Each group costs a block table for every request in every step."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer puts into the cache, found by running the model once."""

    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table between them."""

    layers: tuple[int, ...]
    window: int | None  #: a token sees this many positions, itself included; None for all


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How the layers of a model lie in the cache."""

    shapes: tuple[LayerShape, ...]  #: one for each layer
    groups: tuple[LayerGroup, ...]

    @classmethod
    def of(cls, shapes: Sequence[LayerShape]) -> CacheLayout:
        """Group the layers of a model."""
        layers = tuple(range(len(shapes)))
        by_window: dict[int | None, list[int]] = {}
        for layer, shape in enumerate(shapes):
            by_window.setdefault(shape.sliding_window, []).append(layer)
        if len(by_window) == 1:
            return cls(tuple(shapes), (LayerGroup(layers, shapes[0].sliding_window),))
        stored = {(shape.num_kv_heads, shape.head_dim, shape.value_head_dim) for shape in shapes}
        if len(stored) > 1:
            return cls(tuple(shapes), (LayerGroup(layers, None),))
        size = min(len(members) for members in by_window.values())
        while sum(-(-len(members) // size) for members in by_window.values()) > MAX_GROUPS:
            size += 1
        groups = [
            LayerGroup(tuple(members[start : start + size]), window)
            for window, members in by_window.items()
            for start in range(0, len(members), size)
        ]
        return cls(tuple(shapes), tuple(groups))

    @property
    def num_tensors(self) -> int:
        return max(len(group.layers) for group in self.groups)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """For each group."""
        return tuple(group.window for group in self.groups)

    @property
    def width(self) -> int:
        """Numbers that one token of one group takes."""
        group = max(self.groups, key=lambda group: len(group.layers))
        stored = [self.shapes[layer] for layer in group.layers]
        return sum(shape.num_kv_heads * (shape.head_dim + shape.value_head_dim) for shape in stored)

    def group_of_layer(self) -> tuple[int, ...]:
        """For each layer the index of its group."""
        place = {layer: index for index, group in enumerate(self.groups) for layer in group.layers}
        return tuple(place[layer] for layer in range(len(self.shapes)))

    def tensor_of_layer(self) -> tuple[int, ...]:
        """For each layer the index of its tensor."""
        place = {layer: index for group in self.groups for index, layer in enumerate(group.layers)}
        return tuple(place[layer] for layer in range(len(self.shapes)))


def blocks_for_sequence(windows: Sequence[int | None], num_tokens: int, max_new_tokens: int, block_size: int) -> int:
    """Blocks that one sequence holds at most while it grows to ``num_tokens``.

    Args:
        windows: of each group.
        max_new_tokens: most tokens computed in one step; those a window has passed are given back only afterwards.
    """
    whole = -(-num_tokens // block_size)
    total = 0
    for window in windows:
        # The first block may hold a single row that is still seen.
        total += whole if window is None else min(whole, -(-(window - 1 + max_new_tokens) // block_size) + 1)
    return total
