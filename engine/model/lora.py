"""Applies LoRA adapters to the linear layers of a module: each row of a step may have another adapter, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.model.linears import FusedLinear
from engine.model.peft_folder import LoraPair
from engine.scheduling.adapter import Adapter


@dataclass(frozen=True, eq=False)
class LoraAdapter(Adapter):
    """An adapter in memory, ready to be applied to its model."""

    pairs: Mapping[str, LoraPair]  #: by layer, on the model's device, if its module runs steps
    packed: Any  #: in the layout of the C++ decoder, if it runs steps
    rank: int  #: the largest of its layers
    size_bytes: int
    base_model: str | None  #: what it was trained on, by its configuration


class AdapterRows(NamedTuple):
    """Packed rows of a step that have an adapter."""

    start: int
    stop: int  #: exclusive
    adapter: LoraAdapter


def linear_sizes(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns the outputs and inputs of each linear layer that can be adapted: all but the output layer."""
    from engine.model.replacement import FusedPart  # imports transformers' model code

    output: Any = getattr(module, "get_output_embeddings", lambda: None)()
    return {
        name: (part.out_features, part.in_features)
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear | FusedLinear | FusedPart) and part is not output
    }


class LoraLayers:
    """Adds the updates of adapters to the outputs of a module's linear layers. Without adapters, nothing changes.

    A layer is hooked when the first adapter that has it runs; hooks keep no adapter.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._hooked: set[str] = set()
        self._rows: list[tuple[LoraAdapter, Tensor]] = []
        self._num_rows = 0

    @contextmanager
    def applied(self, rows: Sequence[AdapterRows], num_rows: int, device: torch.device) -> Iterator[None]:
        """Applies adapters within the context, to a forward pass over ``num_rows`` packed rows."""
        spans: dict[LoraAdapter, list[Tensor]] = {}
        for start, stop, adapter in rows:
            spans.setdefault(adapter, []).append(torch.arange(start, stop, device=device))
            for layer in adapter.pairs.keys() - self._hooked:
                self._module.get_submodule(layer).register_forward_hook(self._hook(layer))
                self._hooked.add(layer)
        self._rows = [(adapter, torch.cat(indices)) for adapter, indices in spans.items()]
        self._num_rows = num_rows
        try:
            yield
        finally:
            self._rows = []

    def _hook(self, layer: str) -> Any:
        def add(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            updates = [(adapter.pairs[layer], index) for adapter, index in self._rows if layer in adapter.pairs]
            if not updates:
                return None
            read = inputs[0].flatten(0, -2)
            if len(read) != self._num_rows:
                raise RuntimeError(
                    f"{layer} reads {len(read)} rows of a step of {self._num_rows}; it cannot be adapted"
                )
            added = output.flatten(0, -2).clone()
            for pair, index in updates:
                update = read[index].float() @ pair.a.t() @ pair.b.t()
                added[index] = (added[index].float() + update).to(added.dtype)
            return added.view(output.shape)

        return add
