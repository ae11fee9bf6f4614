"""Remembers models that passed all checks, so that a later start needs none of transformers' model code.

Importing that code takes longer than loading a small model. A record holds what was read from the model's module: its
structure, its tensors' names, and some of its logits. Its key covers everything that the checks depend on but the
weights' values: the files beside the weights, the headers of the files with tensors, the versions of the libraries, our
code and the compiled decoder. Each start compares the decoder's logits with the recorded ones, so other weights under
the same names do not pass, nor does a record that is wrong.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.errors import first_line
from engine.execution.attention.base import LayerCache
from engine.execution.native.activations import Activation
from engine.execution.native.build import cache_folder, load_library
from engine.execution.native.constants import LayerConstants, Rotary
from engine.execution.native.decoder import Decoder
from engine.execution.native.experts import Routing
from engine.execution.native.modules import DecoderNames, ExpertLayout, ExpertNames, LayerNames, NormName
from engine.execution.native.parity_check import text_batch
from engine.execution.native.structure import Structure
from engine.execution.native.weights import DecoderWeights
from engine.model.attention_hook import AttentionNeeds
from engine.model.gguf.files import SUFFIX as GGUF_SUFFIX
from engine.model.gguf.files import all_parts, generation_config_path
from engine.model.gguf.header import read_header
from engine.model.gguf.names import ParameterPlan
from engine.scheduling.cache_layout import LayerShape
from engine.settings import EngineSettings

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

log = logging.getLogger(__name__)

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")
_CODE = tuple(Path(__file__).parents[2] / part for part in ("model", "execution", "scheduling", "text"))
_TEXT_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})
_MAX_RECORDS = 32
"""Records that are kept; the ones that were written longest ago are deleted first."""
_BLOCK_SIZE = 16
_NUM_TOKENS = 8
_NUM_LOGITS = 64  #: of each token
_MAX_DIFFERENCE = 1e-6
"""Most that the logits may differ from the recorded ones, relative to their norm: the same machine code computes the
same."""
_CLASSES = (
    *(Structure, DecoderNames, LayerNames, NormName, ExpertNames, ExpertLayout),
    *(LayerConstants, Rotary, Routing, Activation, LayerShape, AttentionNeeds, ParameterPlan),
)
_RECORDED: Mapping[str, type[Any]] = {one.__name__: one for one in _CLASSES}


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """What a load found out about a model."""

    structure: Structure
    number_format: str
    needs: AttentionNeeds
    stored_names: Mapping[str, str]  #: the checkpoint's name of each parameter
    plans: Mapping[str, ParameterPlan] | None  #: of a GGUF file: how each of the checkpoint's tensors is made
    tokenizer_class: str | None  #: ``module:name``; None for a GGUF file, which says all that its tokenizer needs
    generation_config: Mapping[str, Any] | None  #: of a GGUF file
    max_position_embeddings: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_parameters: int
    weight_bytes: int
    has_unused_adapter: bool
    logits: Tensor  #: float32, a sample of the decoder's logits


def logits_sample(weights: DecoderWeights) -> Tensor:
    """Returns some of the decoder's logits on a few tokens, float32 ``[n]``."""
    structure = weights.structure
    num_tokens = min([_NUM_TOKENS, *(shape.sliding_window or _NUM_TOKENS for shape in structure.shapes)])
    device = torch.device("cpu")
    caches = [LayerCache.zeros(one, 1, _BLOCK_SIZE, weights.dtype, device) for one in structure.shapes]
    decoder = Decoder(weights, caches, [0] * len(caches))
    logits = decoder.logits(text_batch(0, num_tokens, structure.vocab_size))
    return logits[:, :: -(-structure.vocab_size // _NUM_LOGITS)].flatten().clone()


def matches(logits: Tensor, weights: DecoderWeights) -> bool:
    """Whether the decoder computes the recorded logits with these weights."""
    found = logits_sample(weights)
    if found.shape != logits.shape:
        return False
    return bool((found - logits).norm() <= _MAX_DIFFERENCE * logits.norm())  # false for NaN


def environment_hash() -> Hash:
    """Returns the hash of what the checks depend on apart from the model: libraries, our code, the compiled decoder.

    Raises:
        NotCompiled: there is no compiled decoder.
        OSError: a file cannot be read.
    """
    key = hashlib.sha256(json.dumps(list(map(_version, _PACKAGES))).encode())
    key.update(Path(load_library()._name).read_bytes())
    for place in _CODE:
        for file in sorted(place.rglob("*.py")):
            key.update(file.read_bytes())
    return key


def record_path(place: Path, settings: EngineSettings, dtype: torch.dtype) -> Path:
    """Returns the path of the record of a model.

    Args:
        place: the model's folder, or its GGUF file.

    Raises:
        NotCompiled: there is no compiled decoder, or no cache folder.
        OSError: a file cannot be read.
        ModelLoadError: a GGUF file is missing a part, or is damaged.
    """
    # A rotary embedding may depend on the length; a dtype that is not asked for may give way to the number format.
    asked = [settings.dtype, str(dtype), settings.quantization, settings.max_model_len, settings.kv_cache_dtype]
    key = environment_hash()
    key.update(json.dumps(asked).encode())
    key.update(b"peft" if importlib.util.find_spec("peft") is not None else b"")  # applies adapters in the folder
    for file in _files_of(place):
        if file.suffix in _TEXT_SUFFIXES or file.suffix in (".safetensors", GGUF_SUFFIX):
            key.update(f"\0{file.name}\0{file.stat().st_size}\0".encode())
            key.update(file.read_bytes() if file.suffix in _TEXT_SUFFIXES else _header(file))
    return cache_folder() / f"verified-{key.hexdigest()[:32]}.json"


def _files_of(place: Path) -> list[Path]:
    """Returns the files that a model at ``place`` may be read from."""
    if not place.is_file():
        return sorted(place.iterdir())
    beside = generation_config_path(place)
    return [*all_parts(place), *([beside] if beside.exists() else [])]


def read_record(path: Path) -> VerifiedModel | None:
    """Returns a record; None if there is none that can be read."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_hook=_decode)
        record = VerifiedModel(**values)
        return record if isinstance(record.structure, Structure) and isinstance(record.logits, Tensor) else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.info("a record of a checked model is ignored: %s cannot be read (%s)", path, first_line(error))
        return None


def write_record(path: Path, record: VerifiedModel) -> None:
    """Writes a record, which appears whole or not at all. A folder that cannot be written to is left alone."""
    write_json(path, {field.name: getattr(record, field.name) for field in fields(record)})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a record's values, and deletes old records of its kind, whose names begin alike."""
    try:
        text = json.dumps(values, default=encode)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
        kind = path.name.partition("-")[0]
        records = sorted(path.parent.glob(f"{kind}-*.json"), key=lambda one: one.stat().st_mtime, reverse=True)
        for old in records[_MAX_RECORDS:]:
            old.unlink(missing_ok=True)
    except (OSError, TypeError) as error:
        log.info("the next start will check the model again: %s cannot be written (%s)", path, first_line(error))


def tokenizer_class(tokenizer: Any, folder: Path) -> str | None:
    """Returns the class that loads the same tokenizer on its own; None if it takes more than that."""
    kind = type(tokenizer)
    try:
        again = kind.from_pretrained(folder)
        is_same = all(_description(again)[part] == text for part, text in _description(tokenizer).items())
    except (OSError, ValueError, TypeError, AttributeError, KeyError, ImportError):
        return None
    return f"{kind.__module__}:{kind.__qualname__}" if is_same else None


def load_tokenizer(name: str, folder: Path) -> Any:
    """Returns the tokenizer of a class that :func:`tokenizer_class` returned."""
    module, _, kind = name.partition(":")
    return getattr(import_module(module), kind).from_pretrained(folder)


def _description(tokenizer: Any) -> dict[str, object]:
    return {
        "backend": tokenizer.backend_tokenizer.to_str(),
        "special": tokenizer.special_tokens_map,
        "added": {id_: repr(token) for id_, token in tokenizer.added_tokens_decoder.items()},
        "template": tokenizer.chat_template,
        "length": tokenizer.model_max_length,
        "cleans": getattr(tokenizer, "clean_up_tokenization_spaces", None),
        "side": (tokenizer.padding_side, tokenizer.truncation_side),
    }


@cache  # a look-up reads folders, and there are several per model
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _header(file: Path) -> bytes:
    """Returns the header of a file with tensors: their names, dtypes, shapes and places, and a GGUF file's metadata."""
    with file.open("rb") as opened:
        if file.suffix == GGUF_SUFFIX:
            tensors = read_header(file, arrays=False).tensors.values()
            return opened.read(min((tensor.offset for tensor in tensors), default=0))
        size = int.from_bytes(opened.read(8), "little")
        return opened.read(min(size, file.stat().st_size))


def encode(value: Any) -> Any:
    """Returns a part of a record as JSON takes it."""
    if isinstance(value, Tensor):
        return {"tensor": value.flatten().tolist(), "shape": list(value.shape)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if is_dataclass(value) and type(value).__name__ in _RECORDED:
        return {
            "class": type(value).__name__,
            "fields": {field.name: getattr(value, field.name) for field in fields(value)},
        }
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


def _decode(value: dict[str, Any]) -> Any:
    match value:
        case {"tensor": numbers, "shape": shape}:
            return torch.tensor(numbers, dtype=torch.float32).view(*shape)
        case {"dtype": str(name)} if len(value) == 1:
            return getattr(torch, name)
        case {"class": str(name), "fields": values}:
            return _RECORDED[name](**{key: tuple(one) if isinstance(one, list) else one for key, one in values.items()})
    return value
