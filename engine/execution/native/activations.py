"""The activation of a gated MLP: what it computes, and how a model's own is recognised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS: Final = ("silu", "gelu_tanh")
"""In the order of elementwise.h."""

Gated = Callable[[Tensor, Tensor], Tensor]
"""Computes the inputs of the last linear layer from the outputs of gate and up."""


@dataclass(frozen=True, slots=True)
class Activation:
    """``activation(gate) * (up + up_offset)``, of clamped numbers."""

    kind: str  #: one of :data:`KINDS`
    alpha: float = 1.0  #: of SiLU: ``gate * sigmoid(alpha * gate)``
    limit: float = math.inf  #: of gate, and of the magnitude of up
    up_offset: float = 0.0

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        if self.kind == "silu":
            return gate * torch.sigmoid(self.alpha * gate) * (up + self.up_offset)
        return F.gelu(gate, approximate="tanh") * (up + self.up_offset)


def recognise(gated: Gated) -> Activation:
    """Returns the activation that comes closest to a model's own, which may be another one."""
    gate, up = torch.meshgrid(torch.linspace(-12, 12, 49), torch.linspace(-12, 12, 25), indexing="ij")
    gate, up = gate.reshape(1, -1), up.reshape(1, -1)
    found = gated(gate, up)
    candidates = [*(Activation(kind) for kind in KINDS), _clamped(gated)]
    return min(candidates, key=lambda one: _distance(found, one(gate, up)))


def _distance(found: Tensor, expected: Tensor) -> float:
    distance = float((found - expected).abs().max())
    return math.inf if math.isnan(distance) else distance


def _clamped(gated: Gated) -> Activation:
    """Returns the clamped SiLU whose constants a model's activation shows (as in GPT-OSS)."""

    def at(gate: float, up: float) -> float:
        # Two of each, so that neighbours and halves of gate and up are the same.
        numbers = torch.tensor([[gate] * 2, [up] * 2], dtype=torch.float64)
        return float(gated(numbers[:1], numbers[1:])[0, 0])

    plain, one_more, most = at(1, 0), at(1, 1), at(1, 1e6)
    slope = one_more - plain  # sigmoid(alpha)
    if not 0 < slope < 1:
        return Activation("silu")
    offset, limit = plain / slope, most / slope - plain / slope
    alpha = math.log(slope / (1 - slope))
    return Activation("silu", _tidy(alpha), _tidy(limit) if limit < 1e5 else math.inf, _tidy(offset))


def _tidy(number: float) -> float:
    """Removes what rounding in float64 adds to a constant of few digits."""
    return float(f"{number:.9g}")
