"""Linear layers of the CPU: their weights lie in memory as oneDNN reads them fastest, in bfloat16 or in 8 bits.

A plain bfloat16 weight is rearranged by oneDNN in every call, which costs more than the product itself when a few
rows are multiplied. Here that is done once. Layers that read the same tensor (queries, keys and values; gate and
up) become one product, whatever the architecture: a run shows who reads what.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import cast

import torch
from torch import Tensor, nn

from engine.errors import ModelLoadError

SMALLEST_SCALE = 1e-12
"""For a row or an output of nothing but zeros, which stay zeros."""


class Product(nn.Module, ABC):
    """The products of one or more linear layers with the same rows, behind one another.

    Args:
        linears: with equally many inputs; all of them have a bias, or none.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        weights: list[Tensor] = [linear.weight.detach() for linear in linears]
        biases: list[Tensor] = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self._take(weights[0] if len(weights) == 1 else torch.cat(weights))
        self._bias = torch.cat(biases) if biases else None

    @abstractmethod
    def _take(self, weight: Tensor) -> None:
        """Make of a weight ``[out_features, in_features]`` what is multiplied with."""

    @abstractmethod
    def forward(self, rows: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]`` of all layers together."""


class Packed(Product):
    """In bfloat16."""

    def _take(self, weight: Tensor) -> None:
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)  # opaque: only oneDNN reads it

    def forward(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return product


class Int8(Product):
    """Weights and rows in 8 bits, sums in 32: half the memory to read, and four times the products in an instruction.

    Each output of the weight has a scale of its own, found once, and each row one that follows its largest number
    (LLM.int8(), arXiv 2208.07339, section 2.1, without its treatment of outliers). Rows are stored unsigned, around
    128, as the processor's instruction wants them.
    """

    def _take(self, weight: Tensor) -> None:
        steps, scales = to_int8(weight)
        self._weight: Tensor = torch.ops.onednn.qlinear_prepack(steps, None)  # opaque, as above
        self._scales = scales
        self._zeros = torch.zeros(len(scales), dtype=torch.int64)

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, -2)
        scales = flat.abs().amax(1, keepdim=True).float().clamp_min_(SMALLEST_SCALE).div_(127)
        steps = (flat / scales).round_().add_(128).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            steps, 1.0, 128, self._weight, self._scales, self._zeros, None, 1.0, 0, rows.dtype, "none", [], ""
        )
        product = product.mul_(scales)
        if self._bias is not None:
            product += self._bias
        return product.view(*rows.shape[:-1], len(self._scales))


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 ``[out_features, in_features]``, and float32 ``[out_features]``: what a step of each output is worth."""
    scales = weight.abs().amax(1).float().clamp_min(SMALLEST_SCALE) / 127
    return (weight / scales.unsqueeze(1)).round_().to(torch.int8), scales


def product_for(quantization: str, device: torch.device, dtype: torch.dtype) -> type[Product] | None:
    """What multiplies a model's linear layers; None for the layers as they are.

    Raises:
        ModelLoadError: the quantization cannot be had here; says why.
    """
    if quantization == "int8":
        if device.type != "cpu":
            raise ModelLoadError("quantization=int8 runs on processors only. Use quantization=none on a GPU.")
        if not torch.cpu._is_vnni_supported():
            raise ModelLoadError(
                "quantization=int8 needs a processor that multiplies 8-bit numbers (AVX-512 VNNI), and this one does "
                "not. Use quantization=none."
            )
        if dtype is torch.float16:
            raise ModelLoadError("quantization=int8 goes with dtype=bfloat16 or dtype=float32, not with float16.")
        return Int8
    if device.type == "cpu" and dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return Packed
    return None


def replace_linears(module: nn.Module, product: type[Product], run: Callable[[], object]) -> int:
    """Replace every linear layer of a module that a run calls.

    Args:
        module: the model, not training.
        product: what comes in their place.
        run: computes a small forward pass of ``module``.

    Returns:
        How many layers were replaced.
    """
    replaced = 0
    for names in _readers(module, run):
        linears = [cast(nn.Linear, module.get_submodule(name)) for name in names]  # let go of before the next ones
        replacements: Sequence[nn.Module]
        if len(linears) == 1:
            replacements = [product(linears)]
        else:
            shared = _Shared(product(linears), [linear.out_features for linear in linears])
            replacements = [_Part(shared, index) for index in range(len(linears))]
        for name, replacement in zip(names, replacements, strict=True):
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, replacement)
        replaced += len(linears)
    return replaced


class _Shared:
    """One product for layers that are called one after another with the same tensor."""

    def __init__(self, product: Product, sizes: Sequence[int]) -> None:
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


def _readers(module: nn.Module, run: Callable[[], object]) -> list[tuple[str, ...]]:
    """The names of the linear layers that are called: those together that read one tensor one after another."""
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
    return list(groups)
