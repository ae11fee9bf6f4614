"""GPTQ checkpoints, as AutoGPTQ (v1) and GPTQModel (v1 and v2) write them.

Layout: https://github.com/ModelCloud/GPTQModel/blob/main/gptqmodel/nn_modules/qlinear/__init__.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.quantized.affine import AffineWeight, unpack
from engine.model.quantized.awq import in_words
from engine.model.quantized.source import InvalidQuantization, Parts, require_dtype, require_finite, require_shape

_ONES = {4: 0x11111111, 8: 0x01010101}
"""A word whose codes all are 1, by the bits of a code."""


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """Codes ``qweight`` ``[inputs * bits / 32, outputs]``, with ``scales`` and packed ``qzeros`` for groups of inputs.

    With ``desc_act``, ``g_idx`` says which group each input belongs to.
    """

    bits: int  #: 4 or 8
    group_size: int  #: inputs; -1 for all inputs of an output
    is_v2: bool  #: zero points are stored as they are; in v1, one less
    is_float: bool = False
    has_groups: bool = True

    @property
    def label(self) -> str:
        return f"GPTQ ({self.bits} bits, {in_words(self.group_size)})"

    def weights(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        stored = dict.fromkeys(names)  # in order, for the same message each time
        found = {}
        for name in stored:
            if name.endswith(".qweight"):
                layer = name.removesuffix(".qweight")
                roles = ["qweight", "qzeros", "scales", *(["g_idx"] if f"{layer}.g_idx" in stored else [])]
                found[f"{layer}.weight"] = {role: f"{layer}.{role}" for role in roles}
        return found

    def shape(self, name: str, parts: Parts) -> tuple[int, ...]:
        layer = name.removesuffix(".weight")
        words, zeros, scales, order = parts["qweight"], parts["qzeros"], parts["scales"], parts.get("g_idx")
        require_dtype(f"{layer}.qweight", words, torch.int32)
        require_dtype(f"{layer}.qzeros", zeros, torch.int32)
        if words.ndim != 2:
            raise InvalidQuantization(f"{layer}.qweight has {words.ndim} dimensions instead of 2")
        inputs, outputs = words.shape[0] * 32 // self.bits, words.shape[1]
        groups = 1 if self.group_size == -1 else -(-inputs // self.group_size)
        because = f"{self.bits} bits, {outputs} outputs and {in_words(self.group_size)} of {inputs} inputs"
        require_shape(f"{layer}.scales", scales, (groups, outputs), because)
        require_shape(f"{layer}.qzeros", zeros, (groups, -(-outputs * self.bits // 32)), because)
        require_finite(f"{layer}.scales", scales)
        if order is not None:
            require_shape(f"{layer}.g_idx", order, (inputs,), because)
            require_dtype(f"{layer}.g_idx", order, torch.int32, torch.int64)
            lowest, highest = (int(bound) for bound in order.aminmax())
            if lowest < 0 or highest >= groups:
                raise InvalidQuantization(
                    f"{layer}.g_idx names groups from {lowest} to {highest}, and there are {groups}"
                )
        elif self.group_size != -1 and inputs % self.group_size:
            raise InvalidQuantization(
                f"{layer}.qweight has {inputs} inputs, which groups of {self.group_size} do not divide"
            )
        return outputs, inputs

    def dequantize(self, _name: str, parts: Parts, dtype: torch.dtype) -> Tensor:
        return self.affine(_name, parts).dense(dtype)

    def affine(self, _name: str, parts: Parts) -> AffineWeight:
        """Returns a weight's codes, scales and zero points."""
        scales = parts["scales"].t().contiguous()
        zeros = parts["qzeros"] if self.is_v2 else parts["qzeros"] + _ONES[self.bits]  # as GPTQModel: it wraps around
        return AffineWeight(
            unpack(parts["qweight"].t(), self.bits),
            scales,
            unpack(zeros, self.bits)[:, : len(scales)].t().contiguous(),
            self.bits,
            self._order(parts.get("g_idx")),
        )

    def _order(self, order: Tensor | None) -> Tensor | None:
        if order is None:
            return None
        order = order.long()
        group = len(order) if self.group_size == -1 else self.group_size
        is_successive = len(order) % group == 0 and torch.equal(order, torch.arange(len(order)) // group)
        return None if is_successive else order
