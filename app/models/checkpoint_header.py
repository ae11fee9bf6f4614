"""Reads what a list of models shows from a folder in Hugging Face's format: its config and the weights' headers."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.models.local_model import ModelError, Weights

INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 64 * 2**20
"""Of a config or an index; the index of a mixture with many experts has some megabytes."""
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def read_checkpoint(paths: Mapping[str, Path]) -> Weights | None:
    """Returns what the headers say; None if the folder holds no language model that can chat.

    Args:
        paths: the folder's files by name, ``config.json`` among them.

    Raises:
        ModelError: a file is damaged, or weights are missing; says which.
        OSError: a file cannot be read.
    """
    config = _read_json(paths["config.json"])
    architectures = config.get("architectures")
    if isinstance(architectures, list) and not any(_can_chat(str(each)) for each in architectures):
        return None
    files = {name: path for name, path in sorted(paths.items()) if name.endswith(".safetensors")}
    if not files:
        if any(name.endswith(_PICKLES) for name in paths):
            raise ModelError("It has only pickle weights, which can run arbitrary code when opened.")
        return None
    missing = _indexed_files(paths.get(INDEX)) - files.keys()
    if missing:
        raise ModelError(f"Its download is incomplete: {min(missing)} is missing.")
    sizes: dict[str, int] = {}
    types: Counter[str] = Counter()
    for file in files.values():
        for name, (kind, size) in _read_header(file).items():
            sizes[name] = size
            types[kind] += size
    if not types:
        raise ModelError("Its weight files hold no tensors.")
    return _described(config, sizes, types)


def _can_chat(architecture: str) -> bool:
    return architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))


def _read_json(file: Path) -> dict[str, Any]:
    damaged = ModelError(f"Its {file.name} is damaged.")
    if file.stat().st_size > MAX_JSON_BYTES:
        raise damaged
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged from error
    if not isinstance(content, dict):
        raise damaged
    return content


def _indexed_files(index: Path | None) -> set[str]:
    """The weight files that the index names; none if there is no index."""
    if index is None:
        return set()
    named = _read_json(index).get("weight_map")
    if not isinstance(named, dict):
        raise ModelError(f"Its {index.name} is damaged.")
    return {str(name) for name in named.values()}


def _read_header(file: Path) -> dict[str, tuple[str, int]]:
    """Returns the type and the bytes of each tensor in a file."""
    damaged = ModelError(f"Its weights are damaged or cut short: {file.name}. Download them again.")
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        start = opened.read(8)
        if len(start) < 8:
            raise damaged
        (length,) = struct.unpack("<Q", start)
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise damaged
        try:
            header = json.loads(opened.read(length))
            header.pop("__metadata__", None)
            spans = {str(name): [int(at) for at in entry["data_offsets"]] for name, entry in header.items()}
            found = {str(name): (str(entry["dtype"]), _length(spans[name])) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise damaged from error
        if 8 + length + max((end for _, end in spans.values()), default=0) > size:
            raise damaged
    return found


def _length(span: list[int]) -> int:
    begin, end = span
    if not 0 <= begin <= end:
        raise ValueError(span)
    return end - begin


def _described(config: dict[str, Any], sizes: dict[str, int], types: Counter[str]) -> Weights:
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    context = text.get("max_position_embeddings")
    memory = sum(size // 2 if kind == "F32" else size for kind, size in types.items())  # the engine loads bfloat16
    scale = memory / max(sum(types.values()), 1)
    unread = 0
    if any("lm_head" in name for name in sizes):  # otherwise the embeddings are read whole, as the output layer
        unread += sum(size for name, size in sizes.items() if name.endswith(("embed_tokens.weight", "wte.weight")))
    used, experts = text.get("num_experts_per_tok"), text.get("num_experts") or text.get("num_local_experts")
    if isinstance(used, int) and isinstance(experts, int) and 0 < used < experts:
        of_experts = sum(size for name, size in sizes.items() if ".experts." in name)
        unread += of_experts - of_experts * used // experts
    return Weights(
        format=_format(config.get("quantization_config"), types),
        memory_bytes=memory,
        bytes_per_token=int((sum(sizes.values()) - unread) * scale),
        context_length=context if isinstance(context, int) and context > 0 else None,
    )


def _format(quantization: Any, types: Counter[str]) -> str:
    if not isinstance(quantization, dict):
        return types.most_common(1)[0][0]
    method = str(quantization.get("quant_method", "quantized"))
    name = {"awq": "AWQ", "gptq": "GPTQ", "fp8": "FP8", "mxfp4": "MXFP4"}.get(method, method)
    bits = quantization.get("bits", quantization.get("w_bit"))
    if method == "bitsandbytes":
        bits = 4 if quantization.get("load_in_4bit") else 8
    return f"{name} {bits}-bit" if isinstance(bits, int) else name
