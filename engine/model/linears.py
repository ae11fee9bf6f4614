"""Linear layers of the CPU: their weights lie in memory as oneDNN reads them fastest.

A plain bfloat16 weight is rearranged by oneDNN in every call, which costs more than the product itself when a few
rows are multiplied. Here that is done once. Layers that read the same tensor (queries, keys and values; gate and
up) become one product, whatever the architecture: a run shows who reads what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """oneDNN has products of packed weights for this device and number format."""
    return device.type == "cpu" and dtype is torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(module: nn.Module, run: Callable[[], object]) -> None:
    """Replace every linear layer of a module that a run calls.

    Args:
        module: the model, not training.
        run: computes a small forward pass of ``module``.
    """
    for names, linears in _readers(module, run):
        replacements: Sequence[nn.Module]
        if len(linears) == 1:
            replacements = [PackedLinear(linears)]
        else:
            product = _Shared(PackedLinear(linears), [linear.out_features for linear in linears])
            replacements = [_Part(product, index) for index in range(len(linears))]
        for name, replacement in zip(names, replacements, strict=True):
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, replacement)


class PackedLinear(nn.Module):
    """The products of one or more linear layers with the same rows, behind one another.

    Args:
        linears: with equally many inputs; all of them have a bias, or none.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        weights: list[Tensor] = [linear.weight.detach() for linear in linears]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)  # opaque: only oneDNN reads it
        biases: list[Tensor] = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self._bias = torch.cat(biases) if biases else None

    def forward(self, rows: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]`` of all layers together."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return product


class _Shared:
    """One product for layers that are called one after another with the same tensor."""

    def __init__(self, product: PackedLinear, sizes: Sequence[int]) -> None:
        self._product = product
        self._sizes = list(sizes)
        self._rows: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, index: int, rows: Tensor) -> Tensor:
        if index == 0 or rows is not self._rows:
            self._rows, self._parts = rows, self._product(rows).split(self._sizes, dim=-1)
        part = self._parts[index]
        if index == len(self._sizes) - 1:
            self._rows, self._parts = None, ()  # nothing is held between layers
        return part


class _Part(nn.Module):
    """Stands in the place of one of several layers that share a product."""

    def __init__(self, shared: _Shared, index: int) -> None:
        super().__init__()
        self._shared = shared
        self._index = index

    def forward(self, rows: Tensor) -> Tensor:
        return self._shared.part(self._index, rows)


def _readers(module: nn.Module, run: Callable[[], object]) -> list[tuple[tuple[str, ...], list[nn.Linear]]]:
    """The linear layers that are called, with their names: those together that read one tensor one after another."""
    calls: list[tuple[str, Tensor]] = []
    linears = {name: part for name, part in module.named_modules() if type(part) is nn.Linear}

    def listener(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _linear, arguments: calls.append((name, arguments[0]))

    hooks = [linear.register_forward_pre_hook(listener(name)) for name, linear in linears.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    times = Counter(name for name, _rows in calls)
    groups: dict[tuple[str, ...], None] = {}
    for (_rows, _biased, once), members in groupby(
        calls, key=lambda call: (id(call[1]), linears[call[0]].bias is None, times[call[0]] == 1)
    ):
        names = tuple(name for name, _ in members)
        groups.update(dict.fromkeys([names] if once else [(name,) for name in names]))
    return [(names, [linears[name] for name in names]) for names in groups]
