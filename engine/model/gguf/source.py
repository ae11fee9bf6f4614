"""The tensors of a GGUF file by the names of transformers' parameters, mapped from the file."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.device.memory import release_mapped_pages
from engine.model.gguf.dequantize import dequantize_rows
from engine.model.gguf.model_file import GgufModel
from engine.model.gguf.names import ParameterPlan
from engine.model.tensors import BlockTensor

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GgufSource:
    """A :class:`~engine.model.tensors.TensorSource` on the files of a model.

    Args:
        model: its headers.
        plans: how each parameter is made of the file's tensors.
    """

    def __init__(self, model: GgufModel, plans: Mapping[str, ParameterPlan]) -> None:
        self.plans = plans
        self._model = model
        self._maps: dict[Path, Tensor] = {}

    def names(self) -> Iterable[str]:
        """Returns the names of all parameters."""
        return self.plans.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a parameter."""
        return tuple(self.plans[name].shape)

    def block_format(self, name: str) -> str | None:
        """Returns the file's format of a parameter that is read in blocks."""
        plan = self.plans[name]
        info = self._model.tensors[plan.sources[0]]
        is_matrix = len(plan.sources) == 1 and len(plan.shape) == 2 and len(info.shape) == 2
        return info.format if is_matrix and info.format not in _DTYPES else None

    def read(self, name: str) -> Tensor | BlockTensor:
        """Returns a parameter: blocks as they lie in the file, numbers in the file's format or better.

        Raises:
            KeyError: there is no such parameter.
        """
        plan = self.plans[name]
        order = _row_order(plan) if plan.heads else None
        if (block_format := self.block_format(name)) is not None:
            stored = self._stored(plan.sources[0])
            return BlockTensor(block_format, stored, self._model.tensors[plan.sources[0]].shape[-1], order)
        parts = [self._numbers(source) for source in plan.sources]
        tensor = parts[0] if len(parts) == 1 else _joined(parts, plan)
        if plan.is_transposed and tensor.ndim == 3:
            tensor = tensor.transpose(1, 2).contiguous()
        if plan.is_minus_one:
            tensor = tensor.float() - 1
        if order is not None:
            tensor = tensor[order]
        return tensor.reshape(plan.shape)

    def read_expert_blocks(self, name: str) -> Sequence[Sequence[BlockTensor]] | None:
        plan = self.plans[name]
        infos = [self._model.tensors[source] for source in plan.sources]
        if len(plan.shape) != 3 or any(info.format in _DTYPES or len(info.shape) != 3 for info in infos):
            return None
        stored = [self._stored(source) for source in plan.sources]
        if len(stored) == 1 and name.endswith("gate_up_proj"):  # the outputs of gate, then those of up
            stored, infos = list(stored[0].chunk(2, dim=1)), infos * 2
        return [
            [BlockTensor(info.format, own[expert], info.shape[-1]) for own, info in zip(stored, infos, strict=True)]
            for expert in range(plan.shape[0])
        ]

    def release(self, part: Tensor) -> None:
        """Takes a part that was read out of memory; the parts that are not mapped are released with the tensor."""
        if any(_is_within(part, mapped) for mapped in self._maps.values()):
            release_mapped_pages(part)

    def _numbers(self, name: str) -> Tensor:
        info = self._model.tensors[name]
        stored = self._stored(name)
        if info.format in _DTYPES:
            return stored
        return dequantize_rows(info.format, stored, info.shape[-1], torch.float32)

    def _stored(self, name: str) -> Tensor:
        """Returns a tensor as it lies in the file: numbers, or bytes of blocks."""
        info = self._model.tensors[name]
        data = self._map(info.path)[info.offset : info.offset + info.nbytes]
        if info.format in _DTYPES:
            return data.view(_DTYPES[info.format]).view(info.shape)
        return data.view(*info.shape[:-1], -1)

    def _map(self, path: Path) -> Tensor:
        if path not in self._maps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns that the tensor must not be written to
                self._maps[path] = torch.from_numpy(np.memmap(path, np.uint8, "r"))
        return self._maps[path]


def _is_within(part: Tensor, whole: Tensor) -> bool:
    return whole.data_ptr() <= part.data_ptr() < whole.data_ptr() + whole.nbytes


def _row_order(plan: ParameterPlan) -> Tensor:
    """Returns int64 ``[rows]``: for each row of transformers' parameter, the file's row that holds it."""
    rows = plan.shape[0]
    return torch.arange(rows).view(plan.heads, rows // plan.heads // 2, 2).transpose(1, 2).reshape(rows)


def _joined(parts: list[Tensor], plan: ParameterPlan) -> Tensor:
    """Joins gate and up projections along the outputs: one after the other, or alternating."""
    axis = -1 if plan.sources[0].endswith(".bias") else 1
    if not plan.is_transposed:
        return torch.cat(parts, axis)
    joined = torch.stack(parts, parts[0].ndim if axis == -1 else axis + 1)
    return joined.flatten(axis - 1 if axis == -1 else axis, axis + 1 if axis != -1 else -1)
