"""Opens a GGUF file as a checkpoint: everything but its weights is read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from engine.errors import ModelLoadError, first_line
from engine.model.checkpoint import Checkpoint
from engine.model.gguf.config import make_config, make_generation_config
from engine.model.gguf.model_file import FLOATS, GgufModel, open_gguf
from engine.model.gguf.names import plan_parameters
from engine.model.gguf.source import GgufSource
from engine.model.gguf.tokenizer import make_tokenizer
from engine.model.progress import Progress
from engine.model.safetensors_folder import refuse_what_cannot_run
from engine.settings import EngineSettings
from engine.text.chat_template import ChatTemplate


def open_gguf_checkpoint(
    path: Path, settings: EngineSettings, progress: Progress, name: str | None = None
) -> Checkpoint:
    """Opens a model, given any of its files.

    Args:
        name: what the model is called by default; None for the file's name.

    Raises:
        ModelLoadError: a file is missing or damaged, or the model is of a kind that is not supported.
    """
    given = settings.model
    progress(f"Reading {given}", 0.0)
    model = open_gguf(path)
    _refuse_requantizing(model, settings)
    config = make_config(model)
    refuse_what_cannot_run(config, given)
    tokenizer = make_tokenizer(model)
    ChatTemplate(tokenizer).check(given)
    tensors = open_tensors(model, config)
    progress(f"Reading {given}", 1.0)
    return Checkpoint(
        name=name or model.name,
        config=config,
        tokenizer=tokenizer,
        generation_config=make_generation_config(model, config),
        tensors=tensors,
        folder=None,
        weight_bytes=model.nbytes,
        file_format=model.number_format,
        num_parameters=sum(math.prod(info.shape) for info in model.tensors.values()),
    )


def open_tensors(model: GgufModel, config: Any) -> GgufSource:
    """Returns a file's tensors by the names of transformers' parameters.

    Raises:
        ModelLoadError: the file lacks tensors, or they do not fit the configuration.
    """
    try:
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(config)
    except (ValueError, TypeError, ArithmeticError, RuntimeError, AssertionError) as error:  # sizes that do not fit
        raise ModelLoadError(f"The metadata of {model.path} is not valid: {first_line(error)}") from error
    return GgufSource(model, plan_parameters(module, model))


def _refuse_requantizing(model: GgufModel, settings: EngineSettings) -> None:
    is_quantized = any(info.format not in FLOATS for info in model.tensors.values())
    if settings.quantization not in ("none", "auto") and is_quantized:
        raise ModelLoadError(
            f"{settings.model} is already quantized ({model.number_format}). Use quantization=none, which keeps the "
            f"file's format, or a file in F16 or BF16 for quantization={settings.quantization}."
        )
