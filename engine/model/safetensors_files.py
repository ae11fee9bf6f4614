"""Reads the tensors of safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.device.memory import release_mapped_pages
from engine.errors import ModelLoadError, first_line
from engine.model.adapter_files import is_adapter_applied
from engine.model.tensors import TensorSource

_SINGLE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def open_tensors(folder: Path, name: str) -> TensorSource | None:
    """Returns the tensors of the files that transformers would load; None if it would load something else besides.

    Raises:
        ModelLoadError: a file is missing or damaged.
    """
    if is_adapter_applied(folder):
        return None
    try:
        files = _weight_files(folder)
        return SafetensorsTensors([folder / file for file in files]) if files else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ModelLoadError(f"The weights of {name} cannot be loaded: {first_line(error)}") from error


def _weight_files(folder: Path) -> Sequence[str]:
    if (folder / _SINGLE_FILE).is_file():
        return (_SINGLE_FILE,)
    index = folder / _INDEX
    return sorted(set(json.loads(index.read_bytes())["weight_map"].values())) if index.is_file() else ()


class SafetensorsTensors:
    """The tensors of safetensors files, mapped into memory. A :class:`engine.model.tensors.TensorSource`.

    Raises:
        OSError, SafetensorError: a file cannot be opened, or is shorter than its header says.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._file_of: dict[str, Any] = {}
        for file in files:
            opened: Any = safe_open(file, framework="pt")
            self._file_of.update(dict.fromkeys(opened.keys(), opened))

    def names(self) -> Iterable[str]:
        return self._file_of

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.read(name).shape)

    def block_format(self, _name: str) -> None:
        return None

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def release(self, part: Tensor) -> None:
        release_mapped_pages(part)
