"""How much memory a model takes: its weights, and the keys and values of those who use it. From its config alone.

The weights are counted on PyTorch's meta device, where a model of any size is made of shapes without numbers, so that
no formula has to know its architecture.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from transformers import AutoConfig, AutoModelForCausalLM

from engine.errors import InvalidRequestError, ModelLoadError, first_line

BYTES_PER_WEIGHT: Final[Mapping[str, float]] = MappingProxyType({"bf16": 2.0, "int8": 1.0, "int4": 0.5 + 2.5 / 128})
"""In a weight format. ``int4`` has a scale of two bytes and a zero point of half a byte for each group of 128."""
CACHE_BYTES = 2
"""Of one number in the KV cache: bf16, whatever format the weights have."""
BLOCK = 16
"""Tokens in one block of the cache; the last block of a conversation is counted as full."""


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """What one layer keeps."""

    numbers_per_token: int  #: keys and values together
    window: int | None  #: tokens that are kept at most; None keeps all


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Of one model. Sizes are in bytes."""

    name: str
    parameters: int
    quantizable: int  #: of them: matrices other than the embeddings and the output layer, which stay in bf16
    layers: tuple[CacheLayer, ...]
    max_context: int

    def weights(self, dtype: str) -> int:
        """Args: dtype: one of :data:`BYTES_PER_WEIGHT`."""
        kept = (self.parameters - self.quantizable) * BYTES_PER_WEIGHT["bf16"]
        return math.ceil(kept + self.quantizable * BYTES_PER_WEIGHT[dtype])

    @property
    def cache_per_token(self) -> int:
        """While no window is full."""
        return sum(layer.numbers_per_token for layer in self.layers) * CACHE_BYTES

    def cache(self, context: int) -> int:
        """Of one conversation of ``context`` tokens."""
        total = 0
        for layer in self.layers:
            kept = context if layer.window is None else min(context, layer.window)
            total += math.ceil(kept / BLOCK) * BLOCK * layer.numbers_per_token
        return total * CACHE_BYTES

    @property
    def window(self) -> int | None:
        """The narrowest, of those layers that have one."""
        return min((layer.window for layer in self.layers if layer.window is not None), default=None)


def model_size(model: str) -> ModelSize:
    """Size up a model without loading it.

    Args:
        model: a folder with a config.json, or a hub id whose config.json is in the local cache. Nothing is downloaded.

    Raises:
        ModelLoadError: there is no such config, or it is of a model that this arithmetic does not know; says which.
    """
    config = _config(model)
    text = config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        raise ModelLoadError(
            f"{model} keeps compressed keys and values (multi-head latent attention), which this arithmetic does not "
            "know. Its server's start-up log says how large its cache is."
        )
    layers = _cache_layers(text, model)
    parameters, quantizable = _count(config, model)
    context = getattr(text, "max_position_embeddings", None) or 0
    return ModelSize(model, parameters, quantizable, layers, context)


def _config(model: str) -> Any:
    file = _config_file(model)
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read: {first_line(error)}.") from error
    if not isinstance(told, dict) or "model_type" not in told:
        raise ModelLoadError(f"{file} names no model_type, so it is not the config of a Hugging Face model.")
    try:
        config = AutoConfig.for_model(**told)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(
            f"{model} is a {told['model_type']} model, which this version of transformers does not know or cannot "
            f"read: {first_line(error)}"
        ) from error
    except Exception as error:  # validation of a config's fields has errors of its own
        raise ModelLoadError(f"The config of {model} is not valid: {first_line(error)}") from error
    if config.is_encoder_decoder:
        raise ModelLoadError(f"{model} is an encoder-decoder model; Deskmate runs decoder-only language models.")
    return config


def _config_file(model: str) -> Path:
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelLoadError(f"{model} has no config.json, so it is not a Hugging Face model folder.")
        return folder / "config.json"
    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        found = None
    if not isinstance(found, str):
        raise ModelLoadError(
            f"{model} is neither a folder nor a model in the local cache of the Hugging Face hub. Fetch its "
            f"config.json first: hf download {model} config.json"
        )
    return Path(found)


def _cache_layers(text: Any, model: str) -> tuple[CacheLayer, ...]:
    try:
        count: int = text.num_hidden_layers
        heads: int = text.num_attention_heads
        head_dim: int = getattr(text, "head_dim", None) or text.hidden_size // heads
    except AttributeError as error:
        raise ModelLoadError(f"The config of {model} does not say how its attention is shaped: {error}.") from error
    kv_heads: int = getattr(text, "num_key_value_heads", None) or heads
    window: int | None = getattr(text, "sliding_window", None)
    kinds: list[str] = getattr(text, "layer_types", None) or (
        ["sliding_attention" if window and getattr(text, "use_sliding_window", True) else "full_attention"] * count
    )
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelLoadError(
            f"{model} has layers of the kind {', '.join(sorted(unknown))}; this arithmetic knows full and "
            "sliding-window attention only."
        )
    numbers = 2 * kv_heads * head_dim
    return tuple(CacheLayer(numbers, window if kind == "sliding_attention" else None) for kind in kinds)


def _count(config: Any, model: str) -> tuple[int, int]:
    """Parameters, and those of them that a weight format of fewer bits applies to."""
    try:
        with torch.device("meta"):
            made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except (ValueError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise ModelLoadError(
            f"{model} is a {config.model_type} model, which transformers cannot make a causal language model of: "
            f"{first_line(error)}"
        ) from error
    ends = (made.get_input_embeddings(), made.get_output_embeddings())
    whole = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
    parameters = {id(parameter): parameter for parameter in made.parameters()}
    quantizable = sum(each.numel() for key, each in parameters.items() if each.ndim >= 2 and key not in whole)
    return sum(each.numel() for each in parameters.values()), quantizable


def check_context(size: ModelSize, context: int) -> None:
    """Refuse a context that the model does not have.

    Raises:
        InvalidRequestError: names both numbers.
    """
    if size.max_context and context > size.max_context:
        raise InvalidRequestError(
            f"--context {context:,} is more than {size.name} reads: its config says {size.max_context:,} tokens."
        )
