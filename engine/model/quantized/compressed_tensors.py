"""compressed-tensors checkpoints (llm-compressor): packed integers, int8 and 8-bit floating point.

Layout: https://github.com/vllm-project/compressed-tensors/tree/main/src/compressed_tensors/compressors
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.quantized.affine import AffineWeight, unpack
from engine.model.quantized.float8 import multiply_blocks, require_float8
from engine.model.quantized.source import InvalidQuantization, Parts, require_dtype, require_finite, require_shape

PACKED, INT, FLOAT, NAIVE = "pack-quantized", "int-quantized", "float-quantized", "naive-quantized"
FORMATS = (PACKED, INT, FLOAT, NAIVE)
_ROLES = {"weight_scale": "scale", "weight_zero_point": "zero_point", "weight_g_idx": "order"}
_ROLES_PACKED = {**_ROLES, "weight_packed": "packed", "weight_shape": "shape"}


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of some layers are quantized."""

    targets: tuple[str, ...]  #: names of layers, ``re:`` and a regular expression, or classes such as ``Linear``
    format: str  #: one of :data:`FORMATS`
    bits: int
    is_float: bool
    is_symmetric: bool
    strategy: str  #: what shares a scale: ``tensor``, ``channel`` (an output), ``group`` or ``block``
    group_size: int  #: inputs, with ``group``
    block: tuple[int, int]  #: outputs and inputs, with ``block``

    @property
    def in_words(self) -> str:
        shared = {
            "tensor": "one scale",
            "channel": "one scale per output",
            "group": f"groups of {self.group_size}",
            "block": f"blocks of {self.block[0]} x {self.block[1]}",
        }
        return f"{self.format}, {'FP8' if self.is_float else f'{self.bits} bits'}, {shared[self.strategy]}"

    def grid(self, name: str, outputs: int, inputs: int) -> tuple[int, int]:
        """Returns the number of scales along outputs and inputs."""
        match self.strategy:
            case "tensor":
                return 1, 1
            case "channel":
                return outputs, 1
            case "block":
                return -(-outputs // self.block[0]), -(-inputs // self.block[1])
        if inputs % self.group_size:
            raise InvalidQuantization(f"{name} has {inputs} inputs, which groups of {self.group_size} do not divide")
        return outputs, inputs // self.group_size


@dataclass(frozen=True, slots=True)
class CompressedTensorsFormat:
    """Weights with ``weight_scale``; which scheme a layer has follows from its name."""

    schemes: tuple[Scheme, ...]

    @property
    def label(self) -> str:
        return f"compressed-tensors ({'; '.join(scheme.in_words for scheme in self.schemes)})"

    @property
    def bits(self) -> int:
        return self.schemes[0].bits

    @property
    def is_float(self) -> bool:
        return self.schemes[0].is_float

    @property
    def has_groups(self) -> bool:
        return not self.is_float

    def weights(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        stored = dict.fromkeys(names)  # in order, for the same message each time
        found: dict[str, dict[str, str]] = {}
        for name in stored:
            layer, _, kind = name.rpartition(".")
            if kind == "weight_packed":
                roles = {role: f"{layer}.{part}" for part, role in _ROLES_PACKED.items() if f"{layer}.{part}" in stored}
                found[f"{layer}.weight"] = {"scale": f"{layer}.weight_scale", "shape": f"{layer}.weight_shape"} | roles
            elif kind == "weight_scale" and f"{layer}.weight_packed" not in stored:
                roles = {role: f"{layer}.{part}" for part, role in _ROLES.items() if f"{layer}.{part}" in stored}
                found[f"{layer}.weight"] = {"weight": f"{layer}.weight"} | roles
        return found

    def shape(self, name: str, parts: Parts) -> tuple[int, ...]:
        scheme, layer = self._scheme(name), name.removesuffix(".weight")
        require_finite(f"{layer}.weight_scale", parts["scale"])
        if "packed" in parts:
            if scheme.format != PACKED:
                raise InvalidQuantization(f"{layer}.weight_packed is there, and its config says {scheme.format}")
            outputs, inputs = self._packed_shape(layer, parts, scheme)
        else:
            weight = parts["weight"]
            if weight.ndim != 2:
                raise InvalidQuantization(f"{name} has {weight.ndim} dimensions instead of 2")
            if scheme.is_float:
                require_float8(name, weight)
            else:
                require_dtype(name, weight, torch.int8)
            outputs, inputs = weight.shape
        grid = scheme.grid(name, outputs, inputs)
        because = f"{scheme.in_words} of a weight {outputs} x {inputs}"
        if parts["scale"].numel() != 1 or grid != (1, 1):
            scale = parts["scale"].unsqueeze(1) if parts["scale"].ndim == 1 else parts["scale"]
            require_shape(f"{layer}.weight_scale", scale, grid, because)
        if "zero_point" in parts and not scheme.is_symmetric:
            zeros = parts["zero_point"]
            require_dtype(f"{layer}.weight_zero_point", zeros, torch.int32, torch.int8)
            if zeros.dtype is torch.int32:
                packed = (-(-grid[0] * scheme.bits // 32), grid[1])
                require_shape(f"{layer}.weight_zero_point", zeros, packed, because)
            elif zeros.numel() != grid[0] * grid[1]:
                require_shape(f"{layer}.weight_zero_point", zeros, grid, because)
        if not scheme.is_symmetric and "zero_point" not in parts:
            raise InvalidQuantization(f"{layer}.weight_zero_point is missing, and its config says symmetric: false")
        if "order" in parts:
            require_shape(f"{layer}.weight_g_idx", parts["order"], (inputs,), f"{inputs} inputs")
            lowest, highest = (int(bound) for bound in parts["order"].aminmax())
            if lowest < -1 or highest >= grid[1]:
                raise InvalidQuantization(
                    f"{layer}.weight_g_idx names groups from {lowest} to {highest}, and there are {grid[1]}"
                )
        return outputs, inputs

    def dequantize(self, name: str, parts: Parts, dtype: torch.dtype) -> Tensor:
        scheme = self._scheme(name)
        if scheme.strategy == "block" or scheme.is_float:
            weight = parts["weight"]
            block = {"block": scheme.block, "channel": (1, weight.shape[1])}.get(scheme.strategy, tuple(weight.shape))
            scale = parts["scale"]
            return multiply_blocks(weight, scale.unsqueeze(1) if scale.ndim == 1 else scale, block, dtype)
        return self._affine(name, parts, scheme).dense(dtype)

    def affine(self, name: str, parts: Parts) -> AffineWeight | None:
        scheme = self._scheme(name)
        return None if scheme.is_float else self._affine(name, parts, scheme)

    def _affine(self, name: str, parts: Parts, scheme: Scheme) -> AffineWeight:
        outputs, inputs = self.shape(name, parts)
        if "packed" in parts:
            codes = (unpack(parts["packed"], scheme.bits)[:, :inputs].short() - 2 ** (scheme.bits - 1)).to(torch.int8)
        else:
            codes = parts["weight"]
        grid = scheme.grid(name, outputs, inputs)
        scales = parts["scale"].reshape(grid).expand(outputs, grid[1])
        zeros = None if scheme.is_symmetric else self._zero_points(parts["zero_point"], scheme, grid)
        order = parts.get("order")
        if order is not None:
            order = None if bool((order < 0).any()) else order.long()  # -1 everywhere: not used
        zeros = None if zeros is None else zeros.expand(outputs, grid[1])
        return AffineWeight(codes, scales, zeros, scheme.bits, order)

    def _zero_points(self, zeros: Tensor, scheme: Scheme, grid: tuple[int, int]) -> Tensor:
        if zeros.dtype is torch.int8:
            return zeros.reshape(grid)
        unpacked = unpack(zeros.t(), scheme.bits)[:, : grid[0]].t()
        centred: Tensor = unpacked.short() - 2 ** (scheme.bits - 1)
        return centred

    def _packed_shape(self, layer: str, parts: Parts, scheme: Scheme) -> tuple[int, int]:
        packed, shape = parts["packed"], parts["shape"].flatten().tolist()
        require_dtype(f"{layer}.weight_packed", packed, torch.int32)
        if len(shape) != 2 or min(shape) < 1:
            raise InvalidQuantization(f"{layer}.weight_shape is {shape}, which is no shape of a matrix")
        outputs, inputs = (int(size) for size in shape)
        because = f"{scheme.bits} bits of a weight {outputs} x {inputs}"
        require_shape(f"{layer}.weight_packed", packed, (outputs, -(-inputs * scheme.bits // 32)), because)
        return outputs, inputs

    def _scheme(self, name: str) -> Scheme:
        """Returns the scheme of a weight: targets by name come before those by class, as in compressed-tensors."""
        layer = name.removesuffix(".weight")
        for matches in (_is_name, _is_expression, _is_class):
            for scheme in self.schemes:
                if any(matches(target, layer) for target in scheme.targets):
                    return scheme
        targets: Sequence[str] = [target for scheme in self.schemes for target in scheme.targets]
        raise InvalidQuantization(f"{name} is quantized, and no target of its config matches it ({', '.join(targets)})")


def _is_name(target: str, layer: str) -> bool:
    return target == layer


def _is_expression(target: str, layer: str) -> bool:
    return target.startswith("re:") and re.match(target.removeprefix("re:"), layer) is not None


def _is_class(target: str, _layer: str) -> bool:
    return target in ("Linear", "Embedding")
