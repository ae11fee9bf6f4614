"""Makes the bench's models once and keeps them in ``build/bench``, in a peer's own format too where needed."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BYTES_PER_WEIGHT = {"bf16": 2.0, "int8": 1.0, "int4": 0.5625}
"""Format -> bytes read per weight, at least: int4 has a scale of two bytes for each 32 weights."""
FILE = "file"
"""The format of a model that is a GGUF file, which every engine serves as it is."""
GGUF_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_K_M": 15}
"""Quantization -> llama.cpp's number of the file type."""


@dataclass(frozen=True)
class BenchModel:
    """A model's folder or GGUF file, and the properties that determine its speed."""

    name: str
    path: Path
    vocab_size: int
    context: int  #: positions
    parameters: int
    kv_bytes_per_token: int  #: in bf16
    file_bytes: int = 0  #: of a GGUF file: those that one token of one chat reads

    @classmethod
    def at(cls, name: str, path: Path) -> BenchModel:
        config = json.loads((path / "config.json").read_text())
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        parameters = 0
        for file in path.glob("*.safetensors"):
            parameters += sum(math.prod(shape) for shape in _shapes(file))
        return cls(
            name,
            path,
            config["vocab_size"],
            config["max_position_embeddings"],
            parameters,
            2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head,
        )

    @classmethod
    def in_file(cls, name: str, path: Path) -> BenchModel:
        """Returns the model in a GGUF file."""
        from engine.model.gguf.header import read_header
        from engine.model.gguf.summary import summarize_gguf

        header = read_header(path)
        values = {key.partition(".")[2]: value for key, value in header.metadata.items()}
        heads = values["attention.head_count"]
        head = values.get("attention.key_length") or values["embedding_length"] // heads
        return cls(
            name,
            path,
            len(header.metadata["tokenizer.ggml.tokens"]),
            values["context_length"],
            sum(math.prod(tensor.shape) for tensor in header.tensors.values()),
            2 * 2 * values["block_count"] * values.get("attention.head_count_kv", heads) * head,
            summarize_gguf(path).nbytes_per_token,
        )

    def weight_bytes(self, format_: str) -> float:
        if self.file_bytes:
            return self.file_bytes
        return self.parameters * BYTES_PER_WEIGHT[format_]

    def bytes_per_token(self, format_: str, context: float) -> float:
        """Returns the bytes that one decode of one chat must read, without the embedding of one token."""
        return self.weight_bytes(format_) + context * self.kv_bytes_per_token


def _shapes(file: Path) -> list[list[int]]:
    """Returns the shapes of the tensors in a safetensors file, from its header: a length, then JSON."""
    with file.open("rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        header = json.loads(content.read(length))
    return [entry["shape"] for name, entry in header.items() if name != "__metadata__"]


def cache_dir() -> Path:
    folder = Path(os.environ.get("BENCH_CACHE", ROOT / "build" / "bench"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def bench_model(name: str) -> BenchModel:
    """Returns a model by name: S, M, G, guide, smollm2, a GGUF file of one such as M-Q4_K_M; or a folder or file."""
    if name == "guide":
        return BenchModel.at(name, ROOT / "models" / "guide")
    if name == "smollm2":
        from testing.smollm2 import fetch_smollm2

        return BenchModel.in_file("SmolLM2-135M-Q4_1", fetch_smollm2())
    if Path(name).is_file():
        return BenchModel.in_file(Path(name).stem, Path(name))
    source, _, quantization = name.partition("-")
    if quantization in GGUF_TYPES:
        python = os.environ.get("BENCH_LLAMA_PYTHON", sys.executable)
        return BenchModel.in_file(name, make_gguf(bench_model(source), quantization, python, {}))
    if name not in ("S", "M", "G"):
        return BenchModel.at(Path(name).name, Path(name))
    from benchmarks import models  # imports torch, which the bench itself does not need

    make = {"S": models.make_s, "M": models.make_m, "G": models.make_gemma3}[name]
    return BenchModel.at(name, make_once(cache_dir() / name, make))


def make_once(path: Path, make: Callable[[Path], object]) -> Path:
    """Makes ``path`` if it does not exist; it appears only when complete."""
    if not path.exists():
        half = path.with_name(f"{path.name}.half")
        if half.is_dir():
            rmtree(half)
        make(half)
        half.rename(path)
    return path


def make_gguf(model: BenchModel, format_: str, python: str, environment: dict[str, str]) -> Path:
    """Makes the model's GGUF file in bf16 or quantized; returns its path.

    Args:
        model: the model.
        format_: bf16, int8, int4, or a key of :data:`GGUF_TYPES`.
        python: an interpreter that has ``llama_cpp``, which quantizes.
        environment: added to this process's environment.

    Raises:
        ModuleNotFoundError: the package ``gguf`` is not installed.
        subprocess.CalledProcessError: llama.cpp failed.
    """
    from benchmarks import gguf_files

    full = make_once(cache_dir() / f"{model.name}-bf16.gguf", lambda path: gguf_files.write(model.path, path))
    if format_ == "bf16":
        return full
    kind = GGUF_TYPES[{"int8": "Q8_0", "int4": "Q4_0"}.get(format_, format_)]

    def quantize(path: Path) -> Any:
        command = [python, "-c", gguf_files.QUANTIZE, str(full), str(path), str(kind)]
        subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})

    return make_once(cache_dir() / f"{model.name}-{format_}.gguf", quantize)
