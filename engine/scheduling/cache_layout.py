"""The KV cache layout: which layers share a block table, and which share a tensor.

Layers with the same attention window form groups. A request has one block table for each group, so that a
sliding-window group can release blocks that no later token attends to, while a full-attention group keeps its blocks.

All groups allocate from one pool. If all layers have KV of the same shape, groups are cut to equal size, and the n-th
layers of all groups share one tensor. They never overlap, since a block belongs to one group at a time (as in vLLM's
hybrid KV cache). If layers differ in shape, there is a single group and a tensor for each layer, and sliding windows
are only masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_GROUPS = 8
"""Maximum number of groups: each costs a block table for every request in every step. Beyond it, groups get more
layers."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer's KV for a token, found by running the model once."""

    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    sliding_window: int | None  #: in tokens, the token itself included; None for full attention


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share one block table."""

    layers: tuple[int, ...]
    window: int | None  #: attention window in tokens, the token itself included; None for full attention


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups and tensors of a model's KV cache."""

    shapes: tuple[LayerShape, ...]  #: one for each layer
    groups: tuple[LayerGroup, ...]

    @classmethod
    def of(cls, shapes: Sequence[LayerShape]) -> CacheLayout:
        """Groups the layers of a model."""
        layers = tuple(range(len(shapes)))
        by_window: dict[int | None, list[int]] = {}
        for layer, shape in enumerate(shapes):
            by_window.setdefault(shape.sliding_window, []).append(layer)
        if len(by_window) == 1:
            return cls(tuple(shapes), (LayerGroup(layers, shapes[0].sliding_window),))
        stored = {(shape.num_kv_heads, shape.head_dim, shape.value_head_dim) for shape in shapes}
        if len(stored) > 1 or len(by_window) > MAX_GROUPS:
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
        """The attention window of each group."""
        return tuple(group.window for group in self.groups)

    @property
    def width(self) -> int:
        """Number of elements that one token takes in the largest group."""
        return sum(shape.num_kv_heads * (shape.head_dim + shape.value_head_dim) for shape in self.stored_shapes)

    @property
    def stored_shapes(self) -> tuple[LayerShape, ...]:
        """Shapes of the layers of the largest group, each of which has a tensor."""
        group = max(self.groups, key=lambda group: len(group.layers))
        return tuple(self.shapes[layer] for layer in group.layers)

    def group_of_layer(self) -> tuple[int, ...]:
        """Returns the index of each layer's group."""
        place = {layer: index for index, group in enumerate(self.groups) for layer in group.layers}
        return tuple(place[layer] for layer in range(len(self.shapes)))

    def tensor_of_layer(self) -> tuple[int, ...]:
        """Returns the index of each layer's tensor."""
        place = {layer: index for group in self.groups for index, layer in enumerate(group.layers)}
        return tuple(place[layer] for layer in range(len(self.shapes)))


def blocks_for_sequence(windows: Sequence[int | None], num_tokens: int, max_new_tokens: int, block_size: int) -> int:
    """Returns the maximum number of blocks that a sequence holds while it grows to ``num_tokens``.

    Args:
        windows: attention window of each group; None for full attention.
        max_new_tokens: maximum number of tokens computed in one step; blocks that leave the window are released only
            after it.
    """
    whole = -(-num_tokens // block_size)
    total = 0
    for window in windows:
        # + 1: the window may begin at the last row of its first block.
        total += whole if window is None else min(whole, -(-(window - 1 + max_new_tokens) // block_size) + 1)
    return total
