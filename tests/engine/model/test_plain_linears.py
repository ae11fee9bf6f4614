"""Which linear layers may be replaced by a product of their own: those that do nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from engine.model.linears import is_plain


class _Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


class _Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def _own_forward(linear: nn.Linear) -> nn.Module:
    linear.forward = lambda input: input * 2  # type: ignore[method-assign]
    return linear


def _hooked(linear: nn.Linear) -> nn.Module:
    linear.register_forward_hook(lambda _module, _args, output: output * 2)
    return linear


def _hooked_before(linear: nn.Linear) -> nn.Module:
    linear.register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
    return linear


def _parametrized(linear: nn.Linear) -> nn.Module:
    parametrize.register_parametrization(linear, "weight", _Doubled())
    return linear


# The older ones compute the weight in a hook, and leave it as a tensor that is no parameter.
@pytest.mark.parametrize(
    "change",
    [
        _own_forward,
        _hooked,
        _hooked_before,
        _parametrized,
        nn.utils.spectral_norm,
        pytest.param(nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore::FutureWarning")),
        nn.utils.parametrizations.weight_norm,
        lambda linear: _Scaled(linear.in_features, linear.out_features),
    ],
)
def test_a_linear_layer_that_does_more_is_not_plain(change: Callable[[nn.Linear], nn.Module]) -> None:
    linear = nn.Linear(4, 4)
    assert is_plain(linear)
    with torch.no_grad():
        assert not is_plain(change(linear))
