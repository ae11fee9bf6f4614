"""A GGUF model: the headers of all its files as one, checked for what every model must have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ModelLoadError
from engine.model.gguf.files import all_parts, model_name
from engine.model.gguf.header import Header, TensorInfo, read_header

FLOATS = frozenset({"F32", "F16", "BF16", "F64"})


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What the files of a model say of it."""

    path: Path  #: the first file
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def name(self) -> str:
        return model_name(self.path)

    @property
    def architecture(self) -> str:
        """The architecture as llama.cpp names it."""
        return str(self.metadata["general.architecture"])

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes, as they are stored."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def number_format(self) -> str:
        """The name people know the file's quantization by, such as ``Q4_K_M``; mixtures have a name of their own."""
        from gguf.constants import LlamaFileType

        try:
            name = str(LlamaFileType(self.metadata.get("general.file_type", LlamaFileType.GUESSED)).name)
        except ValueError:  # newer than the package
            name = LlamaFileType.GUESSED.name
        if name != LlamaFileType.GUESSED.name:
            return name.removeprefix("MOSTLY_").removeprefix("ALL_").removesuffix("_MOE")
        sizes: Counter[str] = Counter()
        for info in self.tensors.values():
            sizes[info.format] += info.nbytes
        return max(sizes, key=sizes.__getitem__)

    @property
    def num_layers(self) -> int:
        """Number of layers whose tensors the files hold, as long as those are numbered without gaps."""
        return len({name.split(".")[1] for name in self.tensors if name.startswith("blk.")})

    def field(self, key: str) -> Any:
        """Returns a field of the architecture, such as ``rope.scaling.type``; None if there is none."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str) -> float | None:
        """Returns a field that must be a number; None if there is none. Where layers may differ, there is an array.

        Raises:
            ModelLoadError: it is none, is not finite or is negative, or the layers differ.
        """
        value = self.field(key)
        if isinstance(value, np.ndarray):
            if len(value) == 0 or (value != value[0]).any():
                raise ModelLoadError(
                    f"The layers of {self.path} differ in {self.architecture}.{key}, which transformers' models of "
                    "this kind do not. Use the safetensors weights of the model."
                )
            value = value[0].item()
        if value is None:
            return None
        if isinstance(value, bool | str | list) or not 0 <= value < float("inf"):
            raise ModelLoadError(f"{self.path} is damaged: {self.architecture}.{key} is {str(value)[:20]!r}.")
        # as it was before it became float32: 1e-05 instead of 9.999999747378752e-06
        return float(str(np.float32(value))) if isinstance(value, float) else int(value)

    def integer(self, key: str) -> int | None:
        """As :meth:`number`, for a field that must be a whole number below 2^31."""
        value = self.number(key)
        if value is not None and (not isinstance(value, int) or value >= 1 << 31):
            raise ModelLoadError(f"{self.path} is damaged: {self.architecture}.{key} is {str(value)[:20]}.")
        return value


def open_gguf(path: Path) -> GgufModel:
    """Reads the headers of a model's files, given any of them.

    Raises:
        ModelLoadError: a file is missing, damaged or no GGUF file, or it holds something else than a language model.
    """
    parts = all_parts(path)
    headers = [read_header(part) for part in parts]
    metadata = dict(headers[0].metadata)
    _check_contents(parts[0], metadata)
    tensors: dict[str, TensorInfo] = {}
    for number, (part, header) in enumerate(zip(parts, headers, strict=True)):
        _check_part(part, header, number, len(parts))
        for name in header.tensors.keys() & tensors.keys():
            raise ModelLoadError(
                f"{part} and {tensors[name].path.name} both hold the tensor {name}: they do not match."
            )
        tensors.update(header.tensors)
    if not tensors:
        raise ModelLoadError(f"{path} holds a vocabulary but no weights. Use the file of the whole model.")
    stated = metadata.get("split.tensors.count")
    if stated is not None and stated != len(tensors):
        raise ModelLoadError(f"The parts of {path} hold {len(tensors)} tensors instead of {stated}: they do not match.")
    return GgufModel(parts[0], metadata, tensors)


def _check_contents(path: Path, metadata: dict[str, Any]) -> None:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelLoadError(f"{path} does not say which architecture its model has (general.architecture).")
    contents = metadata.get("general.type", "model")
    if architecture == "clip" or contents == "mmproj":
        raise ModelLoadError(
            f"{path} holds the image encoder of a model, not the language model. Give the other GGUF file."
        )
    if contents == "adapter":
        raise ModelLoadError(f"{path} holds a LoRA adapter, not a model. Give the GGUF file of a whole model.")
    if contents != "model":
        raise ModelLoadError(f"{path} holds no model: its general.type is {str(contents)[:40]}.")


def _check_part(path: Path, header: Header, number: int, count: int) -> None:
    """Refuses a file that says it is another part than its name tells."""
    stated = header.metadata.get("split.count", count), header.metadata.get("split.no", number)
    if stated != (count, number) and stated[0] not in (0, 1):
        raise ModelLoadError(
            f"{path} is part {stated[1] + 1} of {stated[0]} of a split model, and its name does not say so. Give all "
            f"parts their original names, which end in -00001-of-{stated[0]:05d}.gguf."
        )
