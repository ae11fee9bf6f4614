"""Quantizes a checkpoint's linear layers and writes it as a compressed-tensors checkpoint.

``int4`` is ``pack-quantized`` with a bfloat16 scale for each 32 inputs, and ``int8`` is ``int-quantized`` with a
float32 scale for each output: exactly what :func:`engine.model.linears.to_int4` and ``to_int8`` compute, so that
Deskmate runs the written codes. vLLM, SGLang and transformers read them, too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from engine.errors import InvalidRequestError, ModelLoadError
from engine.model.checkpoint import Checkpoint
from engine.model.linears import INT4_GROUP, to_int4, to_int8
from engine.model.load import open_checkpoint
from engine.model.progress import Progress
from engine.model.safetensors_writer import MAX_FILE_BYTES, PlannedTensor, write_files
from engine.model.tensors import TensorSource
from engine.settings import EngineSettings

NumberFormat = Literal["int4", "int8"]
_COPIED = (".json", ".jinja", ".model", ".txt", ".tiktoken")
"""Ends of the names of files that a model needs beside its weights: tokenizer, chat template, generation config."""
_COPIED_STARTS = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
_NOT_COPIED = (".index.json",)
_RESERVE = 64 * 2**20
"""Bytes of the disk that stay free."""


@dataclass(frozen=True, slots=True)
class QuantizedFiles:
    """What was written."""

    folder: Path
    bytes_before: int  #: of all weights in the input
    bytes_after: int
    num_quantized: int  #: weights that were quantized
    kept: tuple[str, ...]  #: names of the weights of linear layers that were not


def quantize_checkpoint(
    model: str,
    to: NumberFormat,
    out: Path,
    progress: Progress,
    *,
    revision: str | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> QuantizedFiles:
    """Writes a quantized copy of a model into a new folder: all of it, or nothing.

    Tensors are read, quantized and written one by one. The output layer and the embeddings stay as they are.

    Args:
        model: a folder with safetensors, or a hub id.
        out: the folder to write, which must not exist or be empty.

    Raises:
        ModelLoadError: there is no such model, or it is quantized already.
        InvalidRequestError: ``out`` cannot be written: it holds something, or the disk is too full.
    """
    out = out.expanduser().absolute()
    _refuse_used_folder(out)
    settings = EngineSettings(model=model, revision=revision, device="cpu", _env_file=None)
    checkpoint = open_checkpoint(settings, progress)
    if checkpoint.quantized is not None or checkpoint.folder is None or checkpoint.tensors is None:
        stored = checkpoint.file_format if checkpoint.quantized is None else checkpoint.quantized.label
        raise ModelLoadError(
            f"{model} cannot be quantized: it is stored as {stored or 'a model with an adapter'}, and only unquantized "
            "safetensors can be."
        )
    plan = _Plan(checkpoint, checkpoint.tensors, to, progress)
    if not plan.quantized:
        raise ModelLoadError(f"{model} has no linear layers that could be quantized to {to}.")
    needed = sum(planned.nbytes for group in plan.groups() for planned in group)
    _refuse_full_disk(out, needed)
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        write_files(partial, plan.groups(), plan.make, max_file_bytes)
        _copy_others(checkpoint.folder, partial)
        _write_config(checkpoint.folder, partial, plan.config())
        os.replace(partial, out)
    except OSError as error:
        raise InvalidRequestError(f"{out} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return QuantizedFiles(out, checkpoint.weight_bytes, needed, len(plan.quantized), tuple(plan.kept))


class _Plan:
    """Which tensors are quantized, and how each is made."""

    def __init__(self, checkpoint: Checkpoint, tensors: TensorSource, to: NumberFormat, progress: Progress) -> None:
        self._tensors = tensors
        self._to = to
        self._progress = progress
        self._names = list(tensors.names())
        linear = _linear_weights(checkpoint.config)
        self.quantized: dict[str, tuple[int, int]] = {}  #: shapes by name
        self.kept: list[str] = []
        self._shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for name in self._names:
            tensor = self._read(name)
            self._shapes[name] = tensor.dtype, tuple(tensor.shape)
            if name not in linear:
                continue
            if to == "int4" and tensor.shape[1] % INT4_GROUP:
                self.kept.append(name)
            else:
                self.quantized[name] = (tensor.shape[0], tensor.shape[1])
        self.kept += [name for name in _output_weights(checkpoint.config) if name in self._shapes]
        self._done = 0

    def groups(self) -> Iterator[list[PlannedTensor]]:
        """Yields the tensors to write, those of a weight together."""
        for name in self._names:
            if name not in self.quantized:
                yield [PlannedTensor(name, *self._shapes[name])]
                continue
            layer, (outputs, inputs) = name.removesuffix(".weight"), self.quantized[name]
            if self._to == "int4":
                yield [
                    PlannedTensor(f"{layer}.weight_packed", torch.int32, (outputs, inputs // 8)),
                    PlannedTensor(f"{layer}.weight_scale", torch.bfloat16, (outputs, inputs // INT4_GROUP)),
                    PlannedTensor(f"{layer}.weight_shape", torch.int64, (2,)),
                ]
            else:
                yield [
                    PlannedTensor(name, torch.int8, (outputs, inputs)),
                    PlannedTensor(f"{layer}.weight_scale", torch.float32, (outputs, 1)),
                ]

    def make(self, group: Sequence[PlannedTensor]) -> Sequence[Tensor]:
        """Returns the tensors of a group."""
        first = group[0].name
        name = f"{first.removesuffix('.weight_packed')}.weight" if first.endswith(".weight_packed") else first
        tensor = self._read(name)
        self._progress(f"Quantizing to {self._to}", self._done / len(self._names))
        self._done += 1
        if name not in self.quantized:
            return [tensor]
        codes, scales = to_int8(tensor) if self._to == "int8" else to_int4(tensor)
        shape = torch.tensor(tensor.shape)
        self._tensors.release(tensor)
        if self._to == "int8":
            return [codes, scales.unsqueeze(1)]
        return [_pack(codes), scales.bfloat16(), shape]

    def config(self) -> dict[str, Any]:
        """Returns the quantization_config."""
        weights: dict[str, Any] = {"num_bits": 4, "strategy": "group", "group_size": INT4_GROUP}
        inputs = None
        if self._to == "int8":
            weights = {"num_bits": 8, "strategy": "channel", "group_size": None}
            inputs = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True, "type": "int"}
        weights |= {"type": "int", "symmetric": True, "dynamic": False}
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized" if self._to == "int4" else "int-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": weights,
                    "input_activations": inputs,
                    "output_activations": None,
                }
            },
            "ignore": sorted({"lm_head", *(name.removesuffix(".weight") for name in self.kept)}),
            "kv_cache_scheme": None,
        }

    def _read(self, name: str) -> Tensor:
        tensor = self._tensors.read(name)
        assert isinstance(tensor, Tensor), "a folder of safetensors holds no blocks"
        return tensor


def _linear_weights(config: Any) -> set[str]:
    """Returns the names that checkpoints may give the weights of linear layers, except the output layer's."""
    module = _without_numbers(config)
    prefix = f"{module.base_model_prefix}."
    output = module.get_output_embeddings()
    names = {
        f"{name}.weight" for name, part in module.named_modules() if type(part) is nn.Linear and part is not output
    }
    return names | {name.removeprefix(prefix) for name in names}


def _output_weights(config: Any) -> list[str]:
    module = _without_numbers(config)
    output = module.get_output_embeddings()
    return [f"{name}.weight" for name, part in module.named_modules() if part is output]


def _without_numbers(config: Any) -> Any:
    """Returns the model that a configuration describes, without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _pack(codes: Tensor) -> Tensor:
    """Packs int8 codes from -8 to 7, ``[outputs, inputs]``, as int32 ``[outputs, inputs / 8]``, the first lowest."""
    nibbles = (codes + 8).to(torch.uint8).view(len(codes), -1, 2)
    return (nibbles[..., 0] | nibbles[..., 1] << 4).contiguous().view(torch.int32)


def _copy_others(folder: Path, target: Path) -> None:
    """Copies what a model's folder holds beside its weights and config: tokenizer, chat template, licence."""
    for file in sorted(folder.iterdir()):
        is_wanted = file.name.endswith(_COPIED) or file.name.startswith(_COPIED_STARTS)
        if file.is_file() and is_wanted and not file.name.endswith(_NOT_COPIED):
            shutil.copyfile(file, target / file.name)


def _write_config(folder: Path, target: Path, quantization: dict[str, Any]) -> None:
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = json.dumps({**fields, "quantization_config": quantization}, indent=2, ensure_ascii=False)
    (target / "config.json").write_text(text + "\n", encoding="utf-8")


def _refuse_used_folder(out: Path) -> None:
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InvalidRequestError(f"{out} exists already. Choose another folder, or remove it.")
    except OSError as error:
        raise InvalidRequestError(f"{out} cannot be read: {error.strerror or error}.") from error


def _refuse_full_disk(out: Path, needed: int) -> None:
    parent = next(parent for parent in out.parents if parent.exists())
    free = shutil.disk_usage(parent).free
    if needed + _RESERVE > free:
        raise InvalidRequestError(
            f"{out} needs {needed / 10**9:.2f} GB, and the disk of {parent} has {free / 10**9:.2f} GB free. Free some "
            "space, or choose a folder on another disk."
        )
