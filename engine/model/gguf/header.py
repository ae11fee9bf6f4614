"""Reads the header of a GGUF file: metadata, and where each tensor lies. Trusts no number in it.

Nothing is allocated or read before the file is known to be long enough for it. Imports neither PyTorch nor
transformers. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.errors import ModelLoadError
from engine.model.gguf.wrong_files import describe_other_format

VERSIONS = (2, 3)
"""Version 1, of August 2023, counted in 32 bits."""
DEFAULT_ALIGNMENT = 32  # bytes
MAX_ENTRIES = 1 << 24
"""Entries of an array. The largest vocabularies have 2^18 tokens."""
MAX_FIELDS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1  # the format's own limit
MAX_TENSOR_NAME_BYTES = 127  # llama.cpp's is 63
MAX_DIMENSIONS = 4
MIN_ALIGNMENT, MAX_ALIGNMENT = 8, 1 << 20  # bytes; the format asks for a multiple of 8

_STRING, _ARRAY, _BOOL = 8, 9, 7
_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in its file."""

    path: Path
    format: str  #: GGML's name, such as ``Q4_K``
    shape: tuple[int, ...]  #: as PyTorch orders it: rows before columns
    offset: int  #: bytes from the beginning of the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says of itself."""

    metadata: Mapping[str, Any]  #: arrays of numbers are NumPy's, arrays of strings are lists
    tensors: Mapping[str, TensorInfo]


def read_header(path: Path, *, arrays: bool = True) -> Header:
    """Returns a file's header.

    Args:
        arrays: whether to return the arrays, which hold the vocabulary; without them it takes half the time.

    Raises:
        ModelLoadError: the file cannot be read, is no GGUF file, or is damaged. The message says where.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise ModelLoadError(f"{path} is an empty file, not a GGUF file. Download it again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(path, content, size, arrays).read()
    except (OSError, ValueError) as error:  # ValueError: the file became empty after its size was read
        reason = getattr(error, "strerror", None) or error
        raise ModelLoadError(f"The GGUF file {path} cannot be read: {reason}.") from error


class _Reader:
    """Reads a header from its beginning to its end."""

    def __init__(self, path: Path, content: mmap.mmap, size: int, arrays: bool) -> None:
        self._path = path
        self._content = content
        self._size = size
        self._arrays = arrays
        self._position = 0

    def read(self) -> Header:
        if self._content[:4] != b"GGUF":
            raise ModelLoadError(describe_other_format(self._path, self._content[:64], self._size))
        self._position = 4
        version = self._u32("version")
        if version not in VERSIONS:
            raise self._unsupported_version(version)
        num_tensors, num_fields = self._u64("number of tensors"), self._u64("number of fields")
        if num_fields > MAX_FIELDS or num_tensors > MAX_TENSORS:
            raise self._damaged(f"it claims to have {num_tensors:,} tensors and {num_fields:,} fields")
        metadata: dict[str, Any] = {}
        for index in range(num_fields):
            key = self._key(f"the name of field {index + 1}")
            if key in metadata:
                raise self._damaged(f"it has the field {key} twice")
            metadata[key] = self._value(key)
        return Header(metadata, self._tensors(num_tensors, self._alignment(metadata)))

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        is_power = isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0
        if not is_power or not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT:
            raise self._damaged(f"general.alignment is {str(alignment)[:40]}, not a power of two")
        return int(alignment)

    def _tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        found: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for index in range(count):
            name = self._string(f"the name of tensor {index + 1}", MAX_TENSOR_NAME_BYTES)
            if name in found:
                raise self._damaged(f"it has the tensor {name} twice")
            found[name] = self._tensor(name, alignment)
        start = -(-self._position // alignment) * alignment
        tensors = {
            name: TensorInfo(self._path, format_, shape, start + offset, nbytes)
            for name, (format_, shape, offset, nbytes) in found.items()
        }
        end, before = start, "the header"
        for name, info in sorted(tensors.items(), key=lambda item: item[1].offset):
            if info.offset < end:
                raise self._damaged(f"the tensor {name} overlaps {before}")
            end, before = info.offset + info.nbytes, name
            if end > self._size:
                raise ModelLoadError(
                    f"{self._path} is incomplete: it has {self._size:,} bytes, and the tensor {name} ends at byte "
                    f"{end:,}. Download it again."
                )
        return tensors

    def _tensor(self, name: str, alignment: int) -> tuple[str, tuple[int, ...], int, int]:
        """Returns a tensor's format, shape, offset in the data, and size in bytes."""
        num_dimensions = self._u32(f"the shape of {name}")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._damaged(f"the tensor {name} has {num_dimensions:,} dimensions")
        shape = tuple(self._u64(f"the shape of {name}") for _ in range(num_dimensions))[::-1]
        number = self._u32(f"the format of {name}")
        offset = self._u64(f"the position of {name}")
        format_ = _block_sizes().get(number)
        if format_ is None:
            raise ModelLoadError(
                f"{self._path} cannot be read: the tensor {name} has the format number {number:,}, which this version "
                "does not know. The file is damaged, or newer than Deskmate."
            )
        numbers = 1
        for length in shape:
            numbers *= length
        if numbers == 0 or numbers >= 1 << 62:
            raise self._damaged(f"the tensor {name} has the shape {_listed(shape)}")
        if shape[-1] % format_[1]:
            raise self._damaged(
                f"the rows of {name} have {shape[-1]:,} numbers, and {format_[0]} has blocks of {format_[1]}"
            )
        if offset % alignment:
            raise self._damaged(f"the tensor {name} is not aligned to {alignment} bytes")
        return format_[0], shape, offset, numbers // format_[1] * format_[2]

    def _value(self, key: str) -> Any:
        kind = self._u32(f"the type of {key}")
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key)
        value = self._numbers(kind, 1, key)[0].item()
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str) -> Any:
        kind, count = self._u32(f"the type of {key}"), self._u64(f"the length of {key}")
        if kind == _ARRAY:
            raise self._damaged(f"{key} is an array of arrays")
        if count > MAX_ENTRIES:
            raise self._damaged(f"{key} claims to have {count:,} entries")
        if kind != _STRING:
            numbers = self._numbers(kind, count, key)
            return numbers if self._arrays else None
        return self._strings(key, count)

    def _strings(self, key: str, count: int) -> list[str] | None:
        """Reads an array of strings. It is most of a header, so this loop has no calls of our own."""
        content, size, position, unpack = self._content, self._size, self._position, _U64.unpack_from
        entries: list[bytes] = []
        for _ in range(count):
            if position + 8 > size:
                raise self._truncated(key)
            (length,) = unpack(content, position)
            position += 8
            if length > size - position:
                raise self._truncated(key)
            if self._arrays:
                entries.append(content[position : position + length])
            position += length
        self._position = position
        if not self._arrays:
            return None
        return [entry.decode("utf-8", errors="replace") for entry in entries]

    def _numbers(self, kind: int, count: int, key: str) -> Any:
        dtype = _DTYPES.get(kind)
        if dtype is None:
            raise self._damaged(f"{key} has the unknown type {kind:,}")
        data = np.frombuffer(self._bytes(count * dtype.itemsize, key), dtype)
        if kind == _BOOL and (data > 1).any():
            raise self._damaged(f"{key} is neither true nor false")
        return data.astype(bool) if kind == _BOOL else data

    def _key(self, what: str) -> str:
        key = self._string(what, MAX_KEY_BYTES)
        if not key.isascii() or not key.isprintable():
            raise self._damaged(f"{what} is not a name")
        return key

    def _string(self, what: str, max_bytes: int | None = None) -> str:
        length = self._u64(what)
        if max_bytes is not None and not 1 <= length <= max_bytes:
            raise self._damaged(f"{what} has {length:,} bytes")
        try:
            return self._bytes(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"{what} is not text") from error

    def _u32(self, what: str) -> int:
        return int(_U32.unpack(self._bytes(4, what))[0])

    def _u64(self, what: str) -> int:
        return int(_U64.unpack(self._bytes(8, what))[0])

    def _bytes(self, count: int, what: str) -> bytes:
        end = self._position + count
        if end > self._size:
            raise self._truncated(what)
        data = self._content[self._position : end]
        self._position = end
        return data

    def _truncated(self, what: str) -> ModelLoadError:
        return ModelLoadError(
            f"{self._path} is incomplete or damaged: it ends within {what}, after {self._size:,} bytes. Download it "
            "again."
        )

    def _damaged(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path} is damaged: {what}. Download it again.")

    def _unsupported_version(self, version: int) -> ModelLoadError:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            return ModelLoadError(
                f"{self._path} is a GGUF file for big-endian machines. Use the usual file of the model."
            )
        return ModelLoadError(
            f"{self._path} is a GGUF file of version {version:,}; this version of Deskmate reads "
            f"{' and '.join(map(str, VERSIONS))}. Use a newer file of the model."
        )


def _block_sizes() -> dict[int, tuple[str, int, int]]:
    """Returns, for each number of a format, its name, the numbers in a block, and the bytes of a block."""
    from gguf.constants import GGML_QUANT_SIZES  # takes 0.2 s

    return {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


def _listed(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{length:,}" for length in shape)
