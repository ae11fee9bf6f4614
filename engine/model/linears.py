"""Linear layers of the CPU: their weights lie in memory as oneDNN reads them fastest, in bfloat16, in 8 bits or in 4.

A plain bfloat16 weight is rearranged by oneDNN in every call, which costs more than the product itself when a few
rows are multiplied. Here that is done once. Layers that read the same tensor (queries, keys and values; gate and
up) become one product, whatever the architecture: a run shows who reads what.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.errors import ModelLoadError

SMALLEST_SCALE = 2.0**-40
"""For a row or an output of nothing but zeros, which stay zeros."""
INT4_GROUP = 32
"""Inputs of an output that share a scale, as in llama.cpp's Q4_0."""
_FARTHEST_STEPS = (7.0, 7.5, 8.0, 8.5, 9.0)
_GROUPS_AT_ONCE = 2**19 // INT4_GROUP  # that stay in a processor's cache


class Product(nn.Module, ABC):
    """The products of one or more linear layers with the same rows, behind one another.

    Args:
        linears: with equally many inputs; all of them have a bias, or none.
    """

    bits: ClassVar[str]  #: the weights' number format, in words
    inputs_in: ClassVar[int] = 1  #: of which number the inputs must be a multiple
    outputs_in: ClassVar[int] = 1  #: the same of all outputs together

    @classmethod
    def fits(cls, linears: Sequence[nn.Linear]) -> bool:
        """Whether it can take layers of these sizes."""
        outputs = sum(linear.out_features for linear in linears)
        return linears[0].in_features % cls.inputs_in == 0 and outputs % cls.outputs_in == 0

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

    bits = "bfloat16"

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

    bits = "8 bits"

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


class Int4(Product):
    """Weights in 4 bits, with a scale for each group of 32 of an output; rows as they are, sums in float32.

    PyTorch keeps codes unsigned, around 8, and wants a zero point for each group, which is 0 here.
    """

    bits = "4 bits"
    inputs_in = INT4_GROUP
    outputs_in = 16  # which PyTorch's kernel takes at once

    def _take(self, weight: Tensor) -> None:
        codes, scales = to_int4(weight)
        unsigned = codes.to(torch.int32).add_(8)
        self._weight: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned, 1)  # opaque
        steps = scales.t().to(weight.dtype)
        self._scales = torch.stack([steps, torch.zeros_like(steps)], dim=-1)

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, -2).contiguous()
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, self._weight, INT4_GROUP, self._scales)
        if self._bias is not None:
            product += self._bias
        return product.view(*rows.shape[:-1], self._scales.shape[1])


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 ``[out_features, in_features]``, and float32 ``[out_features]``: what a step of each output is worth."""
    scales = weight.abs().amax(1).float().clamp_min(SMALLEST_SCALE) / 127
    return (weight / scales.unsqueeze(1)).round_().to(torch.int8), scales


def to_int4(weight: Tensor, group: int = INT4_GROUP) -> tuple[Tensor, Tensor]:
    """Codes from -8 to 7, and what a step is worth in each group of inputs: weights are about codes times scales.

    The number farthest from zero tells the sign of a group's scale, so that it gets the eighth step. Of several steps
    that it may take, with the scale that suits all codes best (least squares), the one with the smallest squared error
    is kept; llama.cpp's ``make_qx_quants`` looks for more of them, and gains little.

    Args:
        weight: ``[out_features, in_features]``; in_features is a multiple of ``group``.

    Returns:
        int8 ``[out_features, in_features]``, and float32 ``[out_features, in_features / group]``, whose numbers
        bfloat16 holds exactly.
    """
    groups = weight.reshape(-1, group)
    found = [_int4_groups(part.float()) for part in torch.split(groups, _GROUPS_AT_ONCE)]
    codes, scales = (torch.cat(parts) for parts in zip(*found, strict=True))
    return codes.view(weight.shape), scales.view(len(weight), -1)


def _int4_groups(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Of float32 ``[n, group]``: int8 ``[n, group]``, and float32 ``[n, 1]``."""
    lowest, highest = groups.aminmax(dim=1, keepdim=True)
    farthest = torch.where(-lowest > highest, lowest, highest)
    farthest = torch.where(farthest.abs() < SMALLEST_SCALE, SMALLEST_SCALE, farthest)
    best = scales = torch.empty(0)
    for step in _FARTHEST_STEPS:
        codes = (groups * (-step / farthest)).round_().clamp_(-8, 7)
        products = torch.linalg.vecdot(groups, codes).unsqueeze(1)
        squares = torch.linalg.vecdot(codes, codes).unsqueeze(1)
        scale = (products / squares.clamp_min(1)).bfloat16().float()
        error = scale * (scale * squares - 2 * products)  # less the sum of the weights' squares
        if len(scales):
            better = error < best
            best, scales = torch.where(better, error, best), torch.where(better, scale, scales)
        else:
            best, scales = error, scale
    scales = torch.where(scales == 0, SMALLEST_SCALE, scales)
    return (groups / scales).round_().clamp_(-8, 7).to(torch.int8), scales


@dataclass(frozen=True, slots=True)
class Products:
    """What comes in the place of a model's linear layers: of those, the first kind that fits them."""

    inner: tuple[type[Product], ...]
    output: tuple[type[Product], ...]  #: of the output layer, whose errors nothing behind it evens out


def products_for(quantization: str, device: torch.device, dtype: torch.dtype) -> Products:
    """What multiplies a model's linear layers; no kinds for the layers as they are.

    Raises:
        ModelLoadError: the quantization cannot be had here; says why.
    """
    whole = (
        (Packed,)
        if device.type == "cpu" and dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        else ()
    )
    if quantization == "none":
        return Products(whole, whole)
    if device.type != "cpu":
        raise ModelLoadError(f"quantization={quantization} runs on processors only. Use quantization=none on a GPU.")
    if dtype is torch.float16:
        raise ModelLoadError(
            f"quantization={quantization} goes with dtype=bfloat16 or dtype=float32, not with float16."
        )
    eight_bits = torch.cpu._is_vnni_supported()
    if quantization == "int4":
        halved = (Int8, *whole) if eight_bits else whole
        return Products((Int4, *halved), halved)
    if not eight_bits:
        raise ModelLoadError(
            "quantization=int8 needs a processor that multiplies 8-bit numbers (AVX-512 VNNI), and this one does "
            "not. Use quantization=none."
        )
    return Products((Int8,), (Int8,))


def replace_linears(module: nn.Module, products: Products, run: Callable[[], object]) -> Counter[str]:
    """Replace the linear layers of a module that a run calls.

    Args:
        module: the model, not training.
        products: what comes in their place.
        run: computes a small forward pass of ``module``.

    Returns:
        How many layers are kept in which number format now, of those that were replaced.
    """
    replaced: Counter[str] = Counter()
    output = module.get_output_embeddings() if isinstance(module, PreTrainedModel) else None
    for names in _readers(module, run):
        linears = [cast(nn.Linear, module.get_submodule(name)) for name in names]  # let go of before the next ones
        kinds = products.output if output in linears else products.inner
        kind = next((kind for kind in kinds if kind.fits(linears)), None)
        if kind is None:
            continue
        replacements: Sequence[nn.Module]
        if len(linears) == 1:
            replacements = [kind(linears)]
        else:
            shared = _Shared(kind(linears), [linear.out_features for linear in linears])
            replacements = [_Part(shared, index) for index in range(len(linears))]
        for name, replacement in zip(names, replacements, strict=True):
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, replacement)
        replaced[kind.bits] += len(linears)
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
