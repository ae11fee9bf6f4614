"""Emulates CUDA graphs on any device: records operations and replays them on the same tensors and constants.

A replay runs none of the Python code, so a number read while recording stays as it was. Reading a tensor's value
while recording is an error, as with CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ASKS = {"item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal", "allclose"}


@dataclass(frozen=True)
class _Operation:
    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    outputs: tuple[Tensor, ...]

    def repeat(self) -> None:
        again = self.function(*self.args, **self.kwargs)
        if self.function._schema.is_mutable:
            return
        for output, value in zip(self.outputs, _tensors(again), strict=True):
            output.copy_(value)


def _tensors(tree: Any) -> tuple[Tensor, ...]:
    return tuple(leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[_Operation] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in _ASKS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        result = func(*args, **kwargs)
        outputs = _tensors(result)
        inputs = {tensor.untyped_storage().data_ptr() for tensor in _tensors([args, kwargs])}
        # A view needs no replay: the write to its memory is replayed. Only the result shows whether it is a view,
        # because reshape may copy.
        is_view = bool(outputs) and all(output.untyped_storage().data_ptr() in inputs for output in outputs)
        if func._schema.is_mutable or not is_view:
            self.operations.append(_Operation(func, args, kwargs, outputs))
        return result


class OpRecorder:
    """Implements :class:`engine.execution.graphs.Recorder`."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_repeats = 0

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        with torch.inference_mode(), _Recording() as recording:
            output = compute()
        self.num_recorded += 1

        @torch.inference_mode()
        def repeat() -> Tensor:
            self.num_repeats += 1
            for operation in recording.operations:
                operation.repeat()
            return output

        return repeat
