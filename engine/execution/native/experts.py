"""The experts of a mixture: their weights, how a router chooses among them, and the checks of both.

Experts keep their weights in three dimensions, one matrix for each, and a router returns for each row the chosen
experts and the weights of their outputs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.execution.native.activations import Activation, Gated
from engine.execution.native.modules import ExpertLayout, UnsupportedModel

_PARAMETERS = ({"gate_up_proj", "down_proj"}, {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"})
_NUM_ROWS = 32  #: of checks
_WIDTH = 32  #: of the small experts that are checked in place of a model's own


@dataclass(frozen=True, slots=True)
class Routing:
    """How a layer's router chooses experts: the ``per_token`` most probable ones, by a softmax over all."""

    num_experts: int
    per_token: int
    intermediate: int  #: width of each expert
    is_normalized: bool  #: whether the probabilities of the chosen experts are divided by their sum
    scale: float  #: of these weights

    def weights(self, router: Any, rows: Tensor) -> Tensor:
        """Returns the weight of each expert for float32 rows, ``[num_rows, num_experts]``; 0 for the others."""
        bias = getattr(router, "bias", None)
        logits = rows @ router.weight.detach().float().T
        probs = (logits if bias is None else logits + bias.detach().float()).softmax(dim=-1)
        chosen = probs.topk(self.per_token, dim=-1)
        values = chosen.values / chosen.values.sum(dim=-1, keepdim=True) if self.is_normalized else chosen.values
        return torch.zeros_like(probs).scatter_(1, chosen.indices, values * self.scale)


def read_routing(router: Any, experts: Any) -> Routing:
    """Reads how a router chooses experts, from what it says about random rows.

    Raises:
        UnsupportedModel: router or experts are of another kind.
    """
    parameters = {name for name, _ in experts.named_parameters(recurse=False)}
    if parameters not in _PARAMETERS or not getattr(experts, "has_gate", True):
        raise UnsupportedModel(f"{type(experts).__name__} has unexpected weights: {', '.join(sorted(parameters))}")
    held = {name for name, _ in (*router.named_parameters(recurse=False), *router.named_buffers(recurse=False))}
    if not {"weight"} <= held <= {"weight", "bias"}:
        raise UnsupportedModel(f"{type(router).__name__} has unexpected weights: {', '.join(sorted(held))}")
    num_experts, hidden = router.weight.shape
    rows = torch.randn(_NUM_ROWS, hidden, generator=torch.Generator().manual_seed(0))
    weights = routed(run_in_float32(router, rows), num_experts)
    intermediate = expert_linears(experts, 0).down.in_features
    per_token, total = int((weights[0] != 0).sum()), weights.sum(dim=1)
    is_normalized = bool((total - total[0]).abs().max() < 1e-4 * total[0].abs())
    plain = Routing(num_experts, per_token, intermediate, is_normalized, 1.0)
    scale = float(total.sum() / plain.weights(router, rows).sum())
    return Routing(num_experts, per_token, intermediate, is_normalized, float(f"{scale:.6g}"))


def run_in_float32(router: Any, rows: Tensor) -> Any:
    """Runs a router on float32 rows, whatever the dtype of its weights."""
    wide = copy.copy(router)
    wide._parameters = {name: _parameter(weight.detach().float()) for name, weight in router.named_parameters()}
    return type(router).forward(wide, rows)


def routed(output: tuple[Tensor, Tensor, Tensor], num_experts: int) -> Tensor:
    """Returns a router's output as the weight of each expert, ``[num_rows, num_experts]``."""
    _logits, weights, chosen = output
    return torch.zeros(len(chosen), num_experts).scatter_(1, chosen, weights.float())


def gated(experts: Any) -> Gated:
    """Returns the activation of experts as a function of the outputs of gate and up."""

    def apply(gate: Tensor, up: Tensor) -> Tensor:
        is_concatenated = ExpertLayout.of(experts).is_concatenated
        both = torch.cat([gate, up], -1) if is_concatenated else torch.stack([gate, up], -1).flatten(-2)
        activated: Tensor = experts._apply_gate(both)
        return activated

    return apply


@dataclass(frozen=True, slots=True)
class ExpertLinears:
    """One expert as three linear layers, whose weights are views of the experts' own."""

    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear


def expert_linears(experts: Any, index: int) -> ExpertLinears:
    """Returns one expert as linear layers."""
    layout = ExpertLayout.of(experts)

    def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        made.weight = _parameter(weight)
        made.register_parameter("bias", None if bias is None else _parameter(bias))
        return made

    gate, up = layout.split(layout.matrix(experts.gate_up_proj[index].detach()))
    down = layout.matrix(experts.down_proj[index].detach())
    gate_bias = up_bias = down_bias = None
    if hasattr(experts, "gate_up_proj_bias"):
        gate_bias, up_bias = layout.split(experts.gate_up_proj_bias[index].detach())
        down_bias = experts.down_proj_bias[index].detach()
    return ExpertLinears(linear(gate, gate_bias), linear(up, up_bias), linear(down, down_bias))


def small_outputs(experts: Any, activation: Activation, size: float) -> tuple[Tensor, Tensor]:
    """Runs the code of experts on small random weights; returns its outputs and those of the decoder's formula.

    Args:
        size: magnitude of the outputs of gate and up.
    """
    dice = torch.Generator().manual_seed(0)
    small = copy.copy(experts)
    num_experts, per_token = len(experts.down_proj), min(2, len(experts.down_proj))

    shapes = {
        "gate_up_proj": (_WIDTH, 2 * _WIDTH) if ExpertLayout.of(experts).is_transposed else (2 * _WIDTH, _WIDTH),
        "gate_up_proj_bias": (2 * _WIDTH,),
        "down_proj": (_WIDTH, _WIDTH),
        "down_proj_bias": (_WIDTH,),
    }
    small._parameters = {
        name: _parameter(torch.randn(num_experts, *shapes[name], generator=dice))
        for name, _ in experts.named_parameters(recurse=False)
    }
    small.gate_up_proj.mul_(size)
    rows = torch.randn(_NUM_ROWS, _WIDTH, generator=dice) / _WIDTH**0.5
    chosen = torch.rand(_NUM_ROWS, num_experts, generator=dice).topk(per_token, dim=1).indices
    weights = torch.rand(_NUM_ROWS, per_token, generator=dice)
    expected = torch.zeros(_NUM_ROWS, _WIDTH)
    for index in range(num_experts):
        expert = expert_linears(small, index)
        output = expert.down(activation(expert.gate(rows), expert.up(rows)))
        expected += output * (weights * (chosen == index)).sum(dim=1, keepdim=True)
    return type(experts).forward(small, rows, chosen, weights), expected


def _parameter(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight, requires_grad=False)
