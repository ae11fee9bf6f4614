"""Replaces a model's linear layers with fused, possibly quantized ones.

Layers that read the same tensor (queries, keys and values; gate and up) are fused into one product, for any
architecture: a traced run shows which layers read which tensor. A layer whose weight is read by other code (some
routers multiply with it themselves) is not replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from engine.model.linears import FusedLinear, is_plain
from engine.model.quantization import LinearClasses


def replace_linears(module: nn.Module, linear_classes: LinearClasses, run: Callable[[], object]) -> Counter[str]:
    """Replaces the linear layers of a module that ``run`` calls.

    Args:
        module: the model, in eval mode.
        linear_classes: the classes of their replacements.
        run: computes a small forward pass of ``module``.

    Returns:
        The number of replaced layers by number format, in words (``FusedLinear.bits``).
    """
    replaced: Counter[str] = Counter()
    output = module.get_output_embeddings() if isinstance(module, PreTrainedModel) else None
    for names in _readers(module, run):
        linears = [cast(nn.Linear, module.get_submodule(name)) for name in names]  # freed before the next group
        kinds = linear_classes.output if output in linears else linear_classes.inner
        kind = next((kind for kind in kinds if kind.fits(linears)), None)
        if kind is None:
            continue
        replacements: Sequence[nn.Module]
        if len(linears) == 1:
            replacements = [kind(linears)]
        else:
            shared = _Shared(kind(linears), [linear.out_features for linear in linears])
            replacements = [
                FusedPart(shared, index, linear.in_features, linear.out_features)
                for index, linear in enumerate(linears)
            ]
        for name, replacement in zip(names, replacements, strict=True):
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, replacement)
        replaced[kind.bits] += len(linears)
    return replaced


class _Shared:
    """The fused product of layers that are called one after another with the same tensor."""

    def __init__(self, product: FusedLinear, sizes: Sequence[int]) -> None:
        self._product = product
        self._sizes = list(sizes)
        self._rows: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, index: int, rows: Tensor) -> Tensor:
        if index == 0 or rows is not self._rows:
            self._rows, self._parts = rows, self._product(rows).split(self._sizes, dim=-1)
        part = self._parts[index]
        if index == len(self._sizes) - 1:
            self._rows, self._parts = None, ()  # keep no tensors alive between layers
        return part


class _Watched(nn.Linear):
    """Class of the linear layers during the run: records whether code other than ``forward`` reads the weight."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, cast(Tensor, self._parameters["weight"]), self._parameters["bias"])

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias"):
            vars(self)["weight_is_read"] = True
        return super().__getattr__(name)


class FusedPart(nn.Module):
    """Replaces one of several layers that share a fused product."""

    def __init__(self, shared: _Shared, index: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self._shared = shared
        self._index = index

    def forward(self, rows: Tensor) -> Tensor:
        return self._shared.part(self._index, rows)


def _readers(module: nn.Module, run: Callable[[], object]) -> list[tuple[str, ...]]:
    """Returns the names of the linear layers that ``run`` calls, grouped by the tensor that they read in succession."""
    calls: list[tuple[str, Tensor, Tensor]] = []  #: layer name, the tensor it read, and a copy of its contents then
    linears = {name: part for name, part in module.named_modules() if is_plain(part)}
    biased = {name: linear.bias is not None for name, linear in linears.items()}

    def listener(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _linear, arguments: calls.append((name, arguments[0], arguments[0].clone()))

    hooks = [linear.register_forward_pre_hook(listener(name)) for name, linear in linears.items()]
    for linear in linears.values():
        linear.__class__ = _Watched
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
        for linear in linears.values():
            linear.__class__ = nn.Linear
    read = {name for name, linear in linears.items() if vars(linear).pop("weight_is_read", False)}
    times = Counter(name for name, _rows, _numbers in calls)
    groups: dict[tuple[str, ...], None] = {}
    versions = _versions([(rows, numbers) for _name, rows, numbers in calls])
    of_version = zip([name for name, _rows, _numbers in calls], versions, strict=True)
    for (_version, _biased, once), members in groupby(
        of_version, key=lambda call: (call[1], biased[call[0]], times[call[0]] == 1 and call[0] not in read)
    ):
        names = tuple(name for name, _ in members)
        groups.update(dict.fromkeys([names] if once else [(name,) for name in names if name not in read]))
    return list(groups)


def _versions(reads: Sequence[tuple[Tensor, Tensor]]) -> list[int]:
    """Numbers the reads of tensors: successive reads of the same unchanged tensor get the same number."""
    versions: list[int] = []
    for index, (rows, numbers) in enumerate(reads):
        before = reads[index - 1] if index else (None, None)
        is_same = rows is before[0] and before[1] is not None and torch.equal(numbers, before[1])
        versions.append(versions[-1] if is_same else index)
    return versions
