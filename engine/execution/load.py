"""Loads a model for execution: into the C++ decoder, into transformers' module, or into both."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.device.memory import available_memory
from engine.errors import ModelLoadError, first_line
from engine.execution.attention.int8_cache import check_kv_cache_dtype
from engine.execution.native import verified
from engine.execution.native.build import NotCompiled, is_compiled
from engine.execution.native.eligibility import NativeDecoders, runs_every_step
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.verified import VerifiedModel
from engine.execution.native.weights import DecoderWeights
from engine.model.folders import find_model
from engine.model.forwards import FAILURES
from engine.model.generation_config import load_generation_config
from engine.model.gguf.model_file import open_gguf
from engine.model.gguf.source import GgufSource
from engine.model.gguf.tokenizer import make_tokenizer
from engine.model.loaded_model import LoadedModel
from engine.model.named_tensors import NamedTensors
from engine.model.placement import choose_device, choose_dtype
from engine.model.progress import Progress
from engine.model.safetensors_files import open_tensors
from engine.model.tensors import TensorSource
from engine.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import GenerationConfig

log = logging.getLogger(__name__)


def load_model(settings: EngineSettings, progress: Progress) -> LoadedModel:
    """Loads the model named in ``settings``.

    A model that was checked before goes into the C++ decoder as it did then; transformers' model code is not imported.
    One that may be larger than the memory goes the longer way, which can tell how much it takes.

    Raises:
        ModelLoadError: see :func:`engine.model.load.load_checkpoint`.
    """
    check_kv_cache_dtype(settings.kv_cache_dtype, choose_device(settings.device))
    place, path, record = _find_record(settings, progress)
    if place is not None and record is not None and record.weight_bytes <= available_memory(torch.device("cpu")):
        known = _load_verified(place, record, settings, progress)
        if known is not None:
            return known
    from engine.execution.attention.hf_attention import register  # these import transformers' model code
    from engine.model.load import load_checkpoint

    register()
    decoders = NativeDecoders()
    model = load_checkpoint(settings, progress, decoders)
    if place is not None and path is not None and model.module is None:
        _record(model, decoders, place, path)
    return model


def prepare_model(settings: EngineSettings, progress: Progress, released: int = 0) -> int:
    """Does what can be done before a model is loaded: see :func:`engine.model.load.prepare_model`."""
    _place, _path, record = _find_record(settings, progress)
    if record is not None and record.weight_bytes <= available_memory(torch.device("cpu")) + released:
        return record.weight_bytes
    from engine.model import load  # imports transformers' model code

    return load.prepare_model(settings, progress, released)


def _find_record(settings: EngineSettings, progress: Progress) -> tuple[Path | None, Path | None, VerifiedModel | None]:
    """Returns the model's folder or GGUF file, the path of its record, and the record; None for each that there is not.

    Models on the hub are not recorded: there may be a newer revision, and a format that the engine chooses by the
    free memory may be another at each start.
    """
    device = choose_device(settings.device)
    place = find_model(settings.model)
    if device.type != "cpu" or settings.quantization == "auto" or not isinstance(place, Path):
        return None, None, None
    dtype = choose_dtype(settings.dtype, device)
    try:
        if settings.native and not is_compiled():
            progress("Compiling for this processor", 0.0)
        if not runs_every_step(settings):
            return place, None, None
        path = verified.record_path(place, settings, dtype)
    except (NotCompiled, OSError) as error:
        log.debug("%s has no record: %s", settings.model, first_line(error))
        return place, None, None
    return place, path, verified.read_record(path)


@dataclass(frozen=True, slots=True)
class _OpenedFiles:
    """A recorded model's files, without transformers' model code."""

    name: str
    tensors: TensorSource
    tokenizer: Any
    generation_config: GenerationConfig
    file_format: str | None = None  #: of a GGUF file


def _open_folder(folder: Path, record: VerifiedModel, name: str) -> _OpenedFiles | None:
    tensors = open_tensors(folder, name)
    if tensors is None or record.tokenizer_class is None:
        return None
    tokenizer = verified.load_tokenizer(record.tokenizer_class, folder)
    return _OpenedFiles(Path(name).name, tensors, tokenizer, load_generation_config(folder, name))


def _open_gguf(file: Path, record: VerifiedModel) -> _OpenedFiles | None:
    from transformers.generation.configuration_utils import GenerationConfig  # the package would import models' code

    if record.plans is None or record.generation_config is None:
        return None
    model = open_gguf(file)
    return _OpenedFiles(
        model.name,
        GgufSource(model, record.plans),
        make_tokenizer(model),
        GenerationConfig.from_dict(dict(record.generation_config)),
        model.number_format,
    )


def _load_verified(
    place: Path, record: VerifiedModel, settings: EngineSettings, progress: Progress
) -> LoadedModel | None:
    """Loads a model as its record says; returns None if it does not compute what the record says."""
    progress(f"Reading {settings.model}", 0.0)
    dtype = record.needs.dtype
    try:
        files = _open_gguf(place, record) if place.is_file() else _open_folder(place, record, settings.model)
        if files is None:
            return None
        tensors = NamedTensors(files.tensors, record.stored_names)
        weights = DecoderWeights(tensors, record.structure, record.number_format, dtype)
        weights.log_repacked()
        for number, group in enumerate(weights.groups, start=1):
            weights.pack(group)
            progress("Loading weights", number / len(weights.groups))
        weights.seal()
        matches = verified.matches(record.logits, weights)
    except (ModelLoadError, UnsupportedModel, ImportError, OSError, *FAILURES) as error:
        log.info("the record of %s is ignored: %s", settings.model, first_line(error))
        return None
    if not matches:
        log.info("the record of %s is ignored: its logits are others now", settings.model)
        return None
    log.info("%s runs in C++ (checked at an earlier start)", settings.model)
    return LoadedModel(
        name=files.name,
        module=None,
        tokenizer=files.tokenizer,
        generation_config=files.generation_config,
        device=torch.device("cpu"),
        dtype=dtype,
        layers=record.structure.shapes,
        layer_per_call=False,
        needs=record.needs,
        max_position_embeddings=record.max_position_embeddings,
        vocab_size=record.vocab_size,
        eos_token_ids=frozenset(record.eos_token_ids),
        rotary=None,
        num_parameters=record.num_parameters,
        weight_bytes=record.weight_bytes,
        quantization=settings.quantization,
        has_unused_adapter=record.has_unused_adapter,
        file_format=files.file_format,
        decoder=weights,
    )


def _record(model: LoadedModel, decoders: NativeDecoders, place: Path, path: Path) -> None:
    """Remembers a model whose weights were read from its files."""
    weights, tensors = model.decoder, decoders.read_from
    if tensors is None or not isinstance(weights, DecoderWeights):
        return
    plans = tensors.source.plans if isinstance(tensors.source, GgufSource) else None
    tokenizer_class = None if plans is not None else verified.tokenizer_class(model.tokenizer, place)
    if plans is None and tokenizer_class is None:
        return
    verified.write_record(
        path,
        VerifiedModel(
            structure=weights.structure,
            number_format=weights.number_format,
            needs=model.needs,
            stored_names=tensors.stored_names,
            plans=plans,
            tokenizer_class=tokenizer_class,
            generation_config=None if plans is None else model.generation_config.to_dict(),
            max_position_embeddings=model.max_position_embeddings,
            vocab_size=model.vocab_size,
            eos_token_ids=tuple(sorted(model.eos_token_ids)),
            num_parameters=model.num_parameters,
            weight_bytes=model.weight_bytes,
            has_unused_adapter=model.has_unused_adapter,
            logits=verified.logits_sample(weights),
        ),
    )
