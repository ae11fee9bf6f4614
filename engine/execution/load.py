"""Loads a model for execution: into the C++ decoder, into transformers' module, or into both."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from engine.errors import ModelLoadError, first_line
from engine.execution.native import verified
from engine.execution.native.build import NotCompiled, is_compiled
from engine.execution.native.eligibility import NativeDecoders, runs_every_step
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.verified import VerifiedModel
from engine.execution.native.weights import DecoderWeights
from engine.model.folders import find_model
from engine.model.forwards import FAILURES
from engine.model.generation_config import load_generation_config
from engine.model.loaded_model import LoadedModel
from engine.model.named_tensors import NamedTensors
from engine.model.placement import choose_device, choose_dtype
from engine.model.progress import Progress
from engine.model.safetensors_files import open_tensors
from engine.settings import EngineSettings

log = logging.getLogger(__name__)


def load_model(settings: EngineSettings, progress: Progress) -> LoadedModel:
    """Loads the model named in ``settings``.

    A model that was checked before goes into the C++ decoder as it did then; transformers' model code is not imported.

    Raises:
        ModelLoadError: see :func:`engine.model.load.load_checkpoint`.
    """
    folder, path, record = _find_record(settings, progress)
    if folder is not None and record is not None:
        known = _load_verified(folder, record, settings, progress)
        if known is not None:
            return known
    from engine.execution.attention.hf_attention import register  # these import transformers' model code
    from engine.model.load import load_checkpoint

    register()
    decoders = NativeDecoders()
    model = load_checkpoint(settings, progress, decoders)
    if folder is not None and path is not None and model.module is None:
        _record(model, decoders, folder, path)
    return model


def prepare_model(settings: EngineSettings, progress: Progress) -> int:
    """Does what can be done before a model is loaded: see :func:`engine.model.load.prepare_model`."""
    _folder, _path, record = _find_record(settings, progress)
    if record is not None:
        return record.weight_bytes
    from engine.model import load  # imports transformers' model code

    return load.prepare_model(settings, progress)


def _find_record(settings: EngineSettings, progress: Progress) -> tuple[Path | None, Path | None, VerifiedModel | None]:
    """Returns the model's folder, the place of its record, and the record; None for each that there is not.

    Only folders are recorded: a model on the hub may have a newer revision, and a format that the engine chooses by the
    free memory may be another at each start.
    """
    device = choose_device(settings.device)
    folder = find_model(settings.model)
    if device.type != "cpu" or settings.quantization == "auto" or not isinstance(folder, Path) or not folder.is_dir():
        return None, None, None
    dtype = choose_dtype(settings.dtype, device)
    try:
        if settings.native and not is_compiled():
            progress("Compiling for this processor", 0.0)
        if not runs_every_step(settings):
            return folder, None, None
        path = verified.record_path(folder, settings, dtype)
    except (NotCompiled, OSError) as error:
        log.debug("%s has no record: %s", settings.model, first_line(error))
        return folder, None, None
    return folder, path, verified.read_record(path)


def _load_verified(
    folder: Path, record: VerifiedModel, settings: EngineSettings, progress: Progress
) -> LoadedModel | None:
    """Loads a model as its record says; returns None if it does not compute what the record says."""
    progress(f"Reading {settings.model}", 0.0)
    dtype = record.needs.dtype
    try:
        tensors = open_tensors(folder, settings.model)
        if tensors is None:
            return None
        tokenizer = verified.load_tokenizer(record.tokenizer_class, folder)
        generation_config = load_generation_config(folder, settings.model)
        weights = DecoderWeights(
            NamedTensors(tensors, record.stored_names), record.structure, record.number_format, dtype
        )
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
        name=Path(settings.model).name,
        module=None,
        tokenizer=tokenizer,
        generation_config=generation_config,
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
        decoder=weights,
    )


def _record(model: LoadedModel, decoders: NativeDecoders, folder: Path, path: Path) -> None:
    """Remembers a model whose weights were read from its files."""
    weights = model.decoder
    if decoders.stored_names is None or not isinstance(weights, DecoderWeights):
        return
    tokenizer_class = verified.tokenizer_class(model.tokenizer, folder)
    if tokenizer_class is None:
        return
    verified.write_record(
        path,
        VerifiedModel(
            structure=weights.structure,
            number_format=weights.number_format,
            needs=model.needs,
            stored_names=decoders.stored_names,
            tokenizer_class=tokenizer_class,
            max_position_embeddings=model.max_position_embeddings,
            vocab_size=model.vocab_size,
            eos_token_ids=tuple(sorted(model.eos_token_ids)),
            num_parameters=model.num_parameters,
            weight_bytes=model.weight_bytes,
            has_unused_adapter=model.has_unused_adapter,
            logits=verified.logits_sample(weights),
        ),
    )
