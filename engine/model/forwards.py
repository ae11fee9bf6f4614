"""Runs a model with some of its modules cut out, as the checks at load do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a model's code may raise where a check runs it otherwise than it expects."""


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Callable[[Tensor], Tensor]]]) -> Iterator[None]:
    """Replace the ``forward`` of modules that have no such attribute of their own, until the end."""
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
def one_thread() -> Iterator[None]:
    """Compute on the calling thread alone: where operators are tiny, several threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
