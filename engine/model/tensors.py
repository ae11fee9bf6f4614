"""A checkpoint's tensors, read one at a time, so that a model never lies in memory twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A matrix in one of GGML's block formats, as it lies in its file: each row is a sequence of blocks.

    Formats: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
    """

    format: str  #: GGML's name, such as ``Q4_K``
    blocks: Tensor  #: uint8 ``[outputs, bytes of a row]``, mapped from the file
    inputs: int  #: numbers in a row
    row_order: Tensor | None = None
    """int64 ``[outputs]``: for each row of transformers' parameter, the row of :attr:`blocks` that holds it; None if
    they have the same order. llama.cpp reorders the rows of some models' query and key projections."""


@runtime_checkable
class ExpertBlocksSource(Protocol):
    """A :class:`TensorSource` that may hold experts in block formats; :meth:`TensorSource.read` dequantizes them."""

    def read_expert_blocks(self, name: str) -> Sequence[Sequence[BlockTensor]] | None:
        """Returns a parameter of experts as the matrices that it consists of, ``[outputs, inputs]``, for each expert.

        They are the expert's gate and up projection, or its last one. None if they are not in a block format.
        """


class TensorSource(Protocol):
    """The tensors of a checkpoint, by the names of transformers' parameters (``model.layers.0.mlp.up_proj.weight``)."""

    def names(self) -> Iterable[str]:
        """Returns the names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor as numbers, without reading it.

        Raises:
            KeyError: there is no such tensor.
        """

    def block_format(self, name: str) -> str | None:
        """Returns the format that :meth:`read` returns a tensor in, if it is a :class:`BlockTensor`."""

    def read(self, name: str) -> Tensor | BlockTensor:
        """Returns a tensor, mapped from its file where the file's format allows it.

        Raises:
            KeyError: there is no such tensor.
        """

    def release(self, part: Tensor) -> None:
        """Gives the memory of a part that was read back to the system, if it is mapped; reading it again is allowed.

        Args:
            part: a tensor that :meth:`read` returned, or some of its rows. It was not written to.
        """
