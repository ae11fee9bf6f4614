"""Reads what a list of models shows from the header of a GGUF file, without its weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from app.models.local_model import ModelError, Weights

MAGIC = b"GGUF"
MAX_ENTRIES = 10_000_000
"""Maximum keys, tensors and values of an array. A damaged header may state any number."""
MAX_DIMENSIONS = 8

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
#: Number, name, weights per block and bytes per block of tensor types.
_TYPES = {
    number: (name, weights, size)
    for number, name, weights, size in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (39, "MXFP4", 32, 17),
    )
}
#: ``general.file_type``: the recipe by which the types of the tensors were chosen.
_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16", 38: "MXFP4"},
}
#: Architectures that write no text: embeddings, and the encoders of multimodal models.
_NO_CHAT_MODELS = ("bert", "clip", "t5encoder", "whisper", "mmproj")


class NoChatModel(ModelError):
    """The file is whole, and holds something other than a language model that writes text."""


def read_gguf_header(file: Path) -> tuple[str | None, Weights]:
    """Returns the name in the file, None if it has none, and what the header says of the weights.

    Raises:
        NoChatModel: it holds an embedding model or an encoder.
        ModelError: the header is damaged; says how.
    """
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        if size < 24:
            raise ModelError("The file is too short to be a GGUF file.")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            reader = _Reader(content)
            try:
                return _read(reader, size)
            except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
                raise ModelError("The header is cut short or damaged. Download the file again.") from error


class _Reader:
    """Reads values one after another from the content of a file."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.at = 0
        self.order = "<"

    def scalar(self, code: str) -> Any:
        layout = self.order + code
        (value,) = struct.unpack_from(layout, self.content, self.at)
        self.at += struct.calcsize(layout)
        return value

    def count(self) -> int:
        """A number of things that follow."""
        value: int = self.scalar("Q")
        if value > MAX_ENTRIES:
            raise ModelError("The header is damaged: it states an impossible number of entries.")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        if length > len(self.content) - self.at:
            raise ModelError("The header is cut short or damaged. Download the file again.")
        value = self.content[self.at : self.at + length]
        self.at += length
        return value.decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A value; of an array its length, since the tokenizer's are long and no list shows them."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise ModelError(f"The header is damaged: it has a value of an unknown type ({kind}).")
            return self.scalar(_SCALARS[kind])
        of, length = self.scalar("I"), self.count()
        if of == _STRING:
            self._skip_strings(length)
        elif of in _SCALARS:
            self.at += length * struct.calcsize("<" + _SCALARS[of])
        else:
            raise ModelError(f"The header is damaged: it has an array of an unknown type ({of}).")
        return length

    def _skip_strings(self, count: int) -> None:
        unpack, content, at = struct.Struct(self.order + "Q").unpack_from, self.content, self.at
        for _ in range(count):
            at += 8 + unpack(content, at)[0]
        self.at = at


def _read(reader: _Reader, file_size: int) -> tuple[str | None, Weights]:
    if reader.content[:4] != MAGIC:
        raise ModelError("The file is no GGUF file: it does not begin with GGUF.")
    reader.at = 4
    version = reader.scalar("I")
    if version not in (2, 3):
        raise ModelError(f"The file has version {version} of GGUF. Deskmate reads 2 and 3.")
    num_tensors, num_keys = reader.count(), reader.count()
    keys: dict[str, Any] = {}
    for _ in range(num_keys):
        name = reader.string()
        keys[name] = reader.value(reader.scalar("I"))
    architecture = keys.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError("The file does not say which architecture it has (general.architecture).")
    if architecture.endswith(_NO_CHAT_MODELS) or keys.get("general.type") in ("mmproj", "adapter", "vocab"):
        raise NoChatModel(f"It is a {architecture} file, not a language model that can chat.")
    sizes, types = _read_tensors(reader, num_tensors)
    is_whole = keys.get("split.count", 1) in (0, 1)
    alignment = keys.get("general.alignment", 32)
    padding = -reader.at % alignment if isinstance(alignment, int) and alignment > 0 else 0
    if is_whole and reader.at + padding + sum(sizes.values()) > file_size:
        raise ModelError("The file is shorter than its header says: its download is incomplete.")
    return _described(keys, architecture, sizes, types)


def _read_tensors(reader: _Reader, count: int) -> tuple[dict[str, int], Counter[str]]:
    """Returns the bytes of each tensor, and the bytes by type."""
    sizes: dict[str, int] = {}
    types: Counter[str] = Counter()
    for _ in range(count):
        name = reader.string()
        dimensions = reader.scalar("I")
        if dimensions > MAX_DIMENSIONS:
            raise ModelError("The header is damaged: a tensor has too many dimensions.")
        weights = math.prod(reader.scalar("Q") for _ in range(dimensions))
        kind = reader.scalar("I")
        reader.scalar("Q")  # the offset
        if kind not in _TYPES:
            raise ModelError(f"The file has tensors of a type that Deskmate does not know ({kind}).")
        type_name, block, block_bytes = _TYPES[kind]
        sizes[name] = weights * block_bytes // block
        types[type_name] += sizes[name]
    return sizes, types


def _described(
    keys: dict[str, Any], architecture: str, sizes: dict[str, int], types: Counter[str]
) -> tuple[str | None, Weights]:
    file_type = keys.get("general.file_type")
    common = types.most_common(1)[0][0] if types else "without tensors"
    total = sum(sizes.values())
    used, experts = keys.get(f"{architecture}.expert_used_count"), keys.get(f"{architecture}.expert_count")
    unread = 0
    if "output.weight" in sizes:  # otherwise the embeddings are read whole, as the output layer
        unread += sizes.get("token_embd.weight", 0)
    if isinstance(used, int) and isinstance(experts, int) and 0 < used < experts:
        of_experts = sum(size for name, size in sizes.items() if "_exps." in name)
        unread += of_experts - of_experts * used // experts
    context = keys.get(f"{architecture}.context_length")
    name = keys.get("general.name")
    return (
        name if isinstance(name, str) and name.strip() else None,
        Weights(
            format=f"GGUF {_FILE_TYPES.get(file_type, common) if isinstance(file_type, int) else common}",
            memory_bytes=total,
            bytes_per_token=total - unread,
            context_length=context if isinstance(context, int) and context > 0 else None,
        ),
    )
