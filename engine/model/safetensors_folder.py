"""Opens a model folder in the layout of the Hugging Face hub: config.json, a tokenizer and safetensors files."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from engine.errors import ModelLoadError, first_line
from engine.model.adapter_files import has_unused_adapter
from engine.model.checkpoint import Checkpoint
from engine.model.generation_config import load_generation_config
from engine.model.hub import fetch_description, fetch_weights
from engine.model.progress import Progress
from engine.model.quantized import DequantizedSource, QuantizedFormat, read_format
from engine.model.safetensors_files import open_tensors
from engine.model.tensors import TensorSource
from engine.model.text_part import text_config_of, text_tensors
from engine.settings import EngineSettings
from engine.text.chat_template import ChatTemplate

log = logging.getLogger(__name__)

SUPPORTED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
STATELESS_LAYER_TYPES = frozenset({"mlp", "moe"})


def open_folder(source: Path | str, settings: EngineSettings, progress: Progress) -> Checkpoint:
    """Opens a model folder, fetched from the hub if necessary.

    Args:
        source: the folder, or a hub id.

    Raises:
        ModelLoadError: the folder is incomplete or damaged, or the model cannot run here.
    """
    name = settings.model
    progress(f"Reading {name}", 0.0)
    folder = source if isinstance(source, Path) else fetch_description(source, settings.revision, progress)
    config = _load_config(folder, name)
    quantized = _quantized_format(config, name)
    text_config = text_config_of(config)
    if text_config is not None:
        log.info("%s is a multimodal model (%s): its text part is loaded", name, config.model_type)
        config = text_config
    refuse_what_cannot_run(config, name)
    tokenizer = _load_tokenizer(folder, name)
    ChatTemplate(tokenizer).check(name)
    progress(f"Reading {name}", 1.0)
    if folder is not source:
        fetch_weights(name, folder, progress)  # last, so that a model that cannot run is not downloaded
    tensors = open_tensors(folder, name)
    if text_config is not None:
        if tensors is None:
            raise ModelLoadError(f"{name} is a multimodal model without safetensors, or with a LoRA adapter.")
        tensors = text_tensors(tensors, config, name)
    if quantized is not None:
        tensors = _dequantized(tensors, quantized, name)
    return Checkpoint(
        name=Path(name).name if isinstance(source, Path) else name,
        config=config,
        tokenizer=tokenizer,
        generation_config=load_generation_config(folder, name),
        tensors=tensors,
        folder=folder if quantized is None and text_config is None else None,
        weight_bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        quantized=quantized,
        has_unused_adapter=has_unused_adapter(folder),
    )


def _load_config(folder: Path, name: str) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        if "trust_remote_code" in str(error):
            raise ModelLoadError(
                f"{name} brings its own Python code, which Deskmate never runs. "
                "Choose a model whose architecture is part of transformers."
            ) from error
        raise ModelLoadError(
            f"{name} cannot be read: {first_line(error)} Its architecture may be unknown to "
            "this version of transformers, or config.json may be damaged."
        ) from error


def refuse_what_cannot_run(config: Any, name: str) -> None:
    """Raises ``ModelLoadError`` if a model's configuration tells that it cannot run here."""
    if config.is_encoder_decoder:
        raise ModelLoadError(
            f"{name} is an encoder-decoder model ({config.model_type}); Deskmate runs decoder-only language models."
        )
    architecture = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if architecture is None:
        raise ModelLoadError(
            f"{name} is a {config.model_type} model, which transformers cannot run as a causal language model."
        )
    text_config = config.get_text_config()
    layer_types = set(getattr(text_config, "layer_types", None) or ()) - SUPPORTED_LAYER_TYPES - STATELESS_LAYER_TYPES
    if layer_types:
        raise ModelLoadError(
            f"{name} has layers of the kind {', '.join(sorted(layer_types))}; Deskmate's cache holds keys and values "
            "of full and sliding-window attention only."
        )
    implementation = architecture[0] if isinstance(architecture, tuple) else architecture
    if not implementation._supports_attention_backend:
        raise ModelLoadError(
            f"{name} ({config.model_type}) cannot run here: its code in transformers has no hook for a custom "
            "attention function."
        )


def _quantized_format(config: Any, name: str) -> QuantizedFormat | None:
    """Returns how the weights are quantized, and takes it out of the configuration: the model's module is dense."""
    fields = getattr(config, "quantization_config", None)
    if fields is None:
        return None
    found = read_format(fields if isinstance(fields, Mapping) else fields.to_dict(), name)
    del config.quantization_config
    return found


def _dequantized(tensors: TensorSource | None, quantized: QuantizedFormat, name: str) -> DequantizedSource:
    if tensors is None:
        raise ModelLoadError(
            f"{name} holds quantized weights ({quantized.label}) without a model.safetensors or its index, or with a "
            "LoRA adapter; neither can be loaded."
        )
    return DequantizedSource(tensors, quantized, name)


def _load_tokenizer(folder: Path, name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelLoadError(f"The tokenizer of {name} cannot be loaded: {first_line(error)}") from error
