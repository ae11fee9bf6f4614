"""AWQ checkpoints in the layout of AutoAWQ's ``gemm`` kernels.

Layout: https://github.com/casper-hansen/AutoAWQ/blob/main/awq/utils/packing_utils.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.quantized.affine import AffineWeight, unpack
from engine.model.quantized.source import InvalidQuantization, Parts, require_dtype, require_finite, require_shape

_NIBBLE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight successive outputs is in a word of 32 bits, counted in units of 4 bits from the lowest."""


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """4-bit codes ``qweight`` ``[inputs, outputs / 8]``, with ``scales`` and packed ``qzeros`` for groups of inputs."""

    group_size: int  #: inputs; -1 for all inputs of an output
    bits: int = 4
    is_float: bool = False
    has_groups: bool = True

    @property
    def label(self) -> str:
        return f"AWQ ({self.bits} bits, {in_words(self.group_size)})"

    def weights(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        layers = [name.removesuffix(".qweight") for name in names if name.endswith(".qweight")]
        return {
            f"{layer}.weight": {role: f"{layer}.{role}" for role in ("qweight", "qzeros", "scales")} for layer in layers
        }

    def shape(self, name: str, parts: Parts) -> tuple[int, ...]:
        layer = name.removesuffix(".weight")
        words, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
        require_dtype(f"{layer}.qweight", words, torch.int32)
        require_dtype(f"{layer}.qzeros", zeros, torch.int32)
        if words.ndim != 2:
            raise InvalidQuantization(f"{layer}.qweight has {words.ndim} dimensions instead of 2")
        inputs, outputs = words.shape[0], words.shape[1] * 8
        groups = count_groups(f"{layer}.qweight", inputs, self.group_size)
        because = f"{outputs} outputs and {in_words(self.group_size)} of {inputs} inputs"
        require_shape(f"{layer}.scales", scales, (groups, outputs), because)
        require_shape(f"{layer}.qzeros", zeros, (groups, words.shape[1]), because)
        require_finite(f"{layer}.scales", scales)
        return outputs, inputs

    def dequantize(self, _name: str, parts: Parts, dtype: torch.dtype) -> Tensor:
        return self.affine(_name, parts).dense(dtype)

    def affine(self, _name: str, parts: Parts) -> AffineWeight:
        """Returns a weight's codes, scales and zero points."""
        codes = _unpack_outputs(parts["qweight"]).t().contiguous()
        return AffineWeight(
            codes, parts["scales"].t().contiguous(), _unpack_outputs(parts["qzeros"]).t().contiguous(), 4
        )


def _unpack_outputs(words: Tensor) -> Tensor:
    """Unpacks int32 ``[n, outputs / 8]`` to uint8 ``[n, outputs]``."""
    return unpack(words, 4).view(len(words), -1, 8)[:, :, _NIBBLE_OF_OUTPUT].flatten(1)


def in_words(group_size: int) -> str:
    """Returns a group size in words."""
    return "one group" if group_size == -1 else f"groups of {group_size}"


def count_groups(name: str, inputs: int, group_size: int) -> int:
    """Returns the number of groups of an output.

    Raises:
        InvalidQuantization: the inputs are no whole number of groups.
    """
    if group_size == -1:
        return 1
    if inputs % group_size:
        raise InvalidQuantization(f"{name} has {inputs} inputs, which groups of {group_size} do not divide")
    return inputs // group_size
