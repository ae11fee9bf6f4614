"""The tensors of a quantized checkpoint as dense ones, each dequantized when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from engine.errors import ModelLoadError, first_line
from engine.model.quantized.affine import AffineWeight
from engine.model.quantized.blocks import block_format, to_blocks
from engine.model.tensors import BlockTensor, TensorSource

Parts = Mapping[str, Tensor]
"""The stored tensors of one weight by their role, such as ``scales``."""

UNUSED_SUFFIXES: Final = (
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".output_zero_point",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".weight_format",
)
"""Names of stored tensors that only quantized activations, caches or kernels need."""


_CODES: Final = ("qweight", "packed", "weight")
"""Roles of tensors that are as large as the weight, and not looked at to tell its block format."""


class InvalidQuantization(ValueError):
    """A checkpoint contradicts its quantization_config, or itself. The message names the tensor and the numbers."""


class QuantizedFormat(Protocol):
    """A format of quantized checkpoints, as its quantization_config describes it."""

    @property
    def label(self) -> str:
        """The format in words, such as ``AWQ (4 bits, groups of 128)``."""

    @property
    def bits(self) -> int:
        """Bits of most weights: 4 or 8."""

    @property
    def is_float(self) -> bool:
        """Whether the weights are 8-bit floating-point numbers."""

    @property
    def has_groups(self) -> bool:
        """Whether weights are codes with a scale, and perhaps a zero point, for groups of inputs."""

    def weights(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """Returns the stored tensors of each quantized weight.

        Args:
            names: of all stored tensors.

        Returns:
            For the name of each dense weight, the names of its stored tensors by their role. A role that the format
            requires is there whether or not the checkpoint has such a tensor.
        """

    def shape(self, name: str, parts: Parts) -> tuple[int, ...]:
        """Returns the shape of a dense weight, without dequantizing it, after checking its stored tensors.

        Raises:
            InvalidQuantization: they do not fit together, or a scale is not finite.
        """

    def dequantize(self, name: str, parts: Parts, dtype: torch.dtype, /) -> Tensor:
        """Returns a dense weight. Its stored tensors have been checked."""

    def affine(self, name: str, parts: Parts, /) -> AffineWeight | None:
        """Returns a weight's codes, scales and zero points; None if the format has no such form."""


class DequantizedSource:
    """A :class:`~engine.model.tensors.TensorSource` of dense tensors over the tensors of a quantized checkpoint.

    Values are those of the checkpoint's own dequantization, computed in float32 and rounded once.

    Args:
        stored: the checkpoint's tensors.
        checkpoint_format: how they are quantized.
        model: the model's name, for messages.
        dtype: of the dense tensors that were quantized; the others are as the checkpoint stores them.
        in_blocks: weights come as :class:`~engine.model.tensors.BlockTensor` where blocks hold them
            (:mod:`engine.model.quantized.blocks`).
    """

    def __init__(
        self,
        stored: TensorSource,
        checkpoint_format: QuantizedFormat,
        model: str,
        dtype: torch.dtype = torch.float32,
        *,
        in_blocks: bool = False,
    ) -> None:
        self._stored = stored
        self.format = checkpoint_format
        self._model = model
        self._dtype = dtype
        self._in_blocks = in_blocks
        names = list(stored.names())
        self._weights = checkpoint_format.weights(names)
        of_weights = {part for parts in self._weights.values() for part in parts.values()}
        self._others = [name for name in names if name not in of_weights and not name.endswith(UNUSED_SUFFIXES)]

    def names(self) -> Iterable[str]:
        return [*self._weights, *self._others]

    def in_dtype(self, dtype: torch.dtype) -> DequantizedSource:
        """Returns the same tensors in another data type."""
        return DequantizedSource(self._stored, self.format, self._model, dtype)

    def in_blocks(self) -> DequantizedSource:
        """Returns the same tensors, in blocks where blocks hold them."""
        return DequantizedSource(self._stored, self.format, self._model, self._dtype, in_blocks=True)

    def quantized_names(self) -> Sequence[str]:
        """Returns the names of the weights that are stored quantized."""
        return list(self._weights)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._weights:
            return self._stored.shape(name)
        try:
            return self.format.shape(name, self._read_parts(name))
        except InvalidQuantization as error:
            raise self._refused(error) from error

    def block_format(self, name: str) -> str | None:
        if not self._in_blocks or name not in self._weights:
            return None
        parts = self._read_parts(name)
        without_codes = {role: part.to("meta") if role in _CODES else part for role, part in parts.items()}
        affine = self.format.affine(name, without_codes)
        return None if affine is None else block_format(affine)

    def has_blocks(self) -> bool:
        """Whether any weight comes in blocks."""
        return any(self.block_format(name) is not None for name in self._weights)

    def read(self, name: str) -> Tensor | BlockTensor:
        if name not in self._weights:
            return self._stored.read(name)
        try:
            parts = self._read_parts(name)
            self.format.shape(name, parts)
            weight = self._convert(name, parts)
        except InvalidQuantization as error:
            raise self._refused(error) from error
        for part in parts.values():
            self._stored.release(part)
        return weight

    def _convert(self, name: str, parts: Parts) -> Tensor | BlockTensor:
        """Returns a weight in memory of its own."""
        if self._in_blocks:
            affine = self.format.affine(name, parts)
            blocks = None if affine is None else to_blocks(affine)
            if blocks is not None:
                return blocks
        return self.format.dequantize(name, parts, self._dtype)

    def release(self, part: Tensor) -> None:
        """Does nothing: weights are in memory of their own; what they were stored as is released when it was read."""

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Checks all weights before any is dequantized; reads little more than their scales.

        Args:
            shapes: of the model's parameters by name, as far as they are known.

        Raises:
            ModelLoadError: the checkpoint contradicts its configuration, itself or the model; the message names the
                tensor and the numbers.
        """
        try:
            if not self._weights:
                raise InvalidQuantization(f"its config says {self.format.label}, and no tensor is stored that way")
            for name in self._weights:
                shape, expected = self.format.shape(name, self._read_parts(name)), shapes.get(name)
                if expected is not None and tuple(expected) != shape:
                    raise InvalidQuantization(
                        f"{name} is {_sizes(shape)} as {self.format.label}, and the model's config says "
                        f"{_sizes(expected)}"
                    )
            for name in self._others:
                tensor = self._stored.read(name)
                if isinstance(tensor, Tensor) and not _is_dense(tensor):
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    raise InvalidQuantization(
                        f"{name} is stored as {dtype}, and no scale for it as {self.format.label} is there"
                    )
        except InvalidQuantization as error:
            raise self._refused(error) from error

    def _read_parts(self, name: str) -> dict[str, Tensor]:
        parts = {}
        for role, part in self._weights[name].items():
            try:
                tensor = self._stored.read(part)
            except KeyError as error:
                raise InvalidQuantization(f"{part} is missing, which {self.format.label} needs") from error
            if not isinstance(tensor, Tensor):
                raise InvalidQuantization(f"{part} is stored in blocks of {tensor.format}")
            parts[role] = tensor
        return parts

    def _refused(self, error: InvalidQuantization) -> ModelLoadError:
        return ModelLoadError(f"The quantized weights of {self._model} cannot be used: {first_line(error)}.")


def _is_dense(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() and tensor.itemsize > 1) or tensor.dtype is torch.bool


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(f"{size}" for size in shape) or "a single number"


def require_shape(name: str, tensor: Tensor, expected: Sequence[int], because: str) -> None:
    """Refuses a stored tensor of another shape.

    Args:
        because: what the shape follows from, as in ``groups of 128 of 512 inputs``.

    Raises:
        InvalidQuantization: with both shapes.
    """
    if tuple(tensor.shape) != tuple(expected):
        raise InvalidQuantization(f"{name} is {_sizes(tensor.shape)}, and {because} make it {_sizes(expected)}")


def require_dtype(name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Refuses a stored tensor of another type.

    Raises:
        InvalidQuantization: with both types.
    """
    if tensor.dtype not in dtypes:
        found, *wanted = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, *dtypes))
        raise InvalidQuantization(f"{name} is stored as {found}, and its format needs {' or '.join(wanted)}")


def require_finite(name: str, scales: Tensor) -> None:
    """Refuses scales that are NaN or infinite.

    Raises:
        InvalidQuantization: with the number of such scales.
    """
    if not scales.is_floating_point():
        raise InvalidQuantization(f"{name} is stored as {str(scales.dtype).removeprefix('torch.')}, which no scale is")
    wide = scales if scales.itemsize > 1 else scales.float()
    bad = wide.numel() - int(torch.isfinite(wide).sum())
    if bad:
        raise InvalidQuantization(f"{bad:,} of the {scales.numel():,} scales in {name} are not finite numbers")
