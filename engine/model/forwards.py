"""Helpers for the checks at load, which run a model with some of its modules stubbed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.linears import is_plain

FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that a model's code may raise if a check runs it in an unexpected way."""


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Replaces the ``forward`` of modules within the context. The modules must have no own ``forward`` attribute."""
    replaced: list[nn.Module] = []
    try:
        for module, forward in forwards:
            module.forward = forward
            replaced.append(module)
        yield
    finally:
        for module in replaced:
            vars(module).pop("forward", None)


@contextmanager
def stubbed_linears(module: nn.Module) -> Iterator[None]:
    """Replaces linear layers and experts within the context by stubs that read no weight and round nothing.

    A stub returns the row's own numbers, as many as the layer has outputs.
    """

    def stub(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        columns = torch.arange(linear.out_features) % linear.in_features
        return lambda rows: rows.index_select(-1, columns.to(rows.device))

    linears = [(part, stub(part)) for part in module.modules() if is_plain(part)]
    experts = [(part, _first) for part in module.modules() if is_experts(part)]
    with replaced_forwards([*linears, *experts]):
        yield


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds the weights of a mixture's experts, in three dimensions."""
    wide = {name for name, weight in module.named_parameters(recurse=False) if weight.ndim == 3}
    return wide == {"gate_up_proj", "down_proj"}


def _first(hidden_states: Tensor, *_chosen: Any, **_named: Any) -> Tensor:
    return hidden_states


@contextmanager
def one_thread() -> Iterator[None]:
    """Computes on the calling thread alone: with tiny operators, several threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
