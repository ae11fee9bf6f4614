"""Writes small GGUF files for tests of what reads their headers; the weights are zeros."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

Q4_1 = 3
F32 = 0
_BLOCKS = {F32: (1, 4), Q4_1: (32, 20)}


def gguf_bytes(
    keys: Mapping[str, object] | None = None,
    tensors: Mapping[str, Sequence[int]] | None = None,
    *,
    kind: int = Q4_1,
) -> bytes:
    """Returns a whole file.

    Args:
        keys: added to those of a tiny Llama.
        tensors: shapes by name; all tensors have the type ``kind``.
    """
    fields: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.file_type": 3,
        "llama.context_length": 512,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        **(keys or {}),
    }
    shapes = tensors or {"token_embd.weight": (64, 32)}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(fields))
    for name, value in fields.items():
        head += _string(name) + _value(value)
    block, size = _BLOCKS[kind]
    offset, data = 0, b""
    for name, shape in shapes.items():
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        nbytes = math.prod(shape) // block * size
        data += bytes(-(-nbytes // 32) * 32)
        offset = len(data)
    return head + bytes(-len(head) % 32) + data


def _string(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    return struct.pack("<II", 4, value)
