"""Simulates an asynchronous device on the CPU: reading a tensor before waiting for the step is an error.

It computes at once, in the order of submission, which gives the results of one GPU stream. It refuses to read a
tensor's value while a step has not been waited for; on a GPU such a read would block the host until all queued work
is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

_READS = ("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__", "cpu", "nonzero", "unique")


class ReadTooEarlyError(AssertionError):
    """The host read a tensor while a step was in flight."""


@dataclass
class DelayedDevice:
    """Implements :class:`engine.execution.steps.overlapped.Readback`."""

    unread: int = 0  #: readbacks not waited for yet
    num_overlapped: int = 0  #: readbacks started while another one was unread
    waits: list[int] = field(default_factory=list)  #: number of columns of each readback
    _reading: bool = False

    @contextmanager
    def reads_allowed(self) -> Iterator[None]:
        """Allows reads within the context, for example for another engine's work."""
        before, self._reading = self._reading, True
        try:
            yield
        finally:
            self._reading = before

    def start(self, numbers: Tensor) -> DelayedReading:
        assert numbers.dtype is torch.int64
        self.num_overlapped += self.unread > 0
        self.unread += 1
        return DelayedReading(self, numbers.clone())

    @contextmanager
    def guarded(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayedDevice]:
        """Makes early reads fail within the context."""
        with monkeypatch.context() as patch:
            for name in _READS:
                patch.setattr(Tensor, name, self._refusing(name, getattr(Tensor, name)))
            yield self

    def _refusing(self, name: str, read: Any) -> Any:
        def refuse(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.unread and not self._reading:
                raise ReadTooEarlyError(f"Tensor.{name} while {self.unread} steps are being computed")
            return read(tensor, *args, **kwargs)

        return refuse


@dataclass
class DelayedReading:
    device: DelayedDevice
    numbers: Tensor
    waited: bool = False

    def wait(self) -> list[list[int]]:
        assert not self.waited, "read twice"
        self.waited = True
        self.device.unread -= 1
        self.device.waits.append(self.numbers.shape[1])
        with self.device.reads_allowed():
            numbers: list[list[int]] = self.numbers.tolist()
            return numbers
