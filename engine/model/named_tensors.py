"""Tensors by the names of a model's parameters, from a checkpoint that names them otherwise or from a module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from engine.model.tensors import BlockTensor, ExpertBlocksSource, TensorSource


class NamedTensors:
    """The tensors of a checkpoint by other names. A :class:`engine.model.tensors.TensorSource`.

    Args:
        source: the checkpoint's tensors.
        stored_names: the checkpoint's name of each tensor.
    """

    def __init__(self, source: TensorSource, stored_names: Mapping[str, str]) -> None:
        self.source = source
        self.stored_names = stored_names

    def names(self) -> Iterable[str]:
        return self.stored_names

    def shape(self, name: str) -> tuple[int, ...]:
        return self.source.shape(self.stored_names[name])

    def block_format(self, name: str) -> str | None:
        return self.source.block_format(self.stored_names[name])

    def read(self, name: str) -> Tensor | BlockTensor:
        return self.source.read(self.stored_names[name])

    def read_expert_blocks(self, name: str) -> Sequence[Sequence[BlockTensor]] | None:
        source = self.source
        return source.read_expert_blocks(self.stored_names[name]) if isinstance(source, ExpertBlocksSource) else None

    def release(self, part: Tensor) -> None:
        self.source.release(part)


class ModuleTensors:
    """The parameters of a module that holds its weights. A :class:`engine.model.tensors.TensorSource`."""

    def __init__(self, module: nn.Module) -> None:
        self._parameters = dict(module.named_parameters(remove_duplicate=False))

    def names(self) -> Iterable[str]:
        return self._parameters

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._parameters[name].shape)

    def block_format(self, _name: str) -> None:
        return None

    def read(self, name: str) -> Tensor:
        return self._parameters[name].detach()

    def release(self, part: Tensor) -> None:
        """Does nothing: the module keeps its weights."""
