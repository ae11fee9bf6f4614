"""A GGUF model: the headers of all its files as one, checked for what every model must have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def field(self, key: str, default: Any = None) -> Any:
        """Returns a field of the architecture, such as ``embedding_length``."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


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
