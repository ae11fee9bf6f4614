"""Writes safetensors files tensor by tensor, so that no more than one of them is in memory.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

MAX_FILE_BYTES: Final = 5 * 10**9
_DTYPES: Final = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8  #: bytes; headers are padded with spaces to a multiple of it


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor that is going to be written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_files(
    folder: Path,
    groups: Iterable[Sequence[PlannedTensor]],
    make: Callable[[Sequence[PlannedTensor]], Sequence[Tensor]],
    max_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Writes ``model.safetensors``, or several files of at most ``max_bytes`` with their index.

    Args:
        groups: tensors that are made together; those of a group go into one file.
        make: returns the tensors of a group, in its order.

    Raises:
        OSError: a file cannot be written.
        ValueError: ``make`` returned another tensor than was planned.
    """
    files: list[list[Sequence[PlannedTensor]]] = [[]]
    used = 0
    for group in groups:
        size = sum(tensor.nbytes for tensor in group)
        if files[-1] and used + size > max_bytes:
            files.append([])
            used = 0
        files[-1].append(group)
        used += size
    names = (
        ["model.safetensors"]
        if len(files) == 1
        else [f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)]
    )
    for name, of_file in zip(names, files, strict=True):
        _write_file(folder / name, of_file, make)
    if len(files) > 1:
        tensors = [(tensor, name) for name, of_file in zip(names, files, strict=True) for g in of_file for tensor in g]
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor, _ in tensors)},
            "weight_map": {tensor.name: name for tensor, name in tensors},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(
    path: Path,
    groups: Iterable[Sequence[PlannedTensor]],
    make: Callable[[Sequence[PlannedTensor]], Sequence[Tensor]],
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for group in groups:
        for planned in group:
            header[planned.name] = {
                "dtype": _DTYPES[planned.dtype],
                "shape": list(planned.shape),
                "data_offsets": [offset, offset + planned.nbytes],
            }
            offset += planned.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for group in groups:
            for planned, tensor in zip(group, make(group), strict=True):
                if tensor.dtype is not planned.dtype or tuple(tensor.shape) != planned.shape:
                    raise ValueError(
                        f"{planned.name} is {tensor.dtype} {tuple(tensor.shape)}, and {planned} was planned"
                    )
                tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tofile(file)
