"""Estimates from a model's config how much memory its weights and the KV cache of its conversations take.

Parameters are counted on PyTorch's meta device, where a model of any size is built from shapes without data, so no
formula has to know the architecture.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from engine.errors import InvalidRequestError, ModelLoadError, first_line
from engine.model.folders import find_model
from engine.model.gguf.config import make_config
from engine.model.gguf.model_file import FLOATS, open_gguf
from engine.model.quantized import read_format


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A number format of a model's linear layers. Embeddings stay in bf16."""

    bytes_per_weight: float  #: scales included
    devices: frozenset[str]  #: the types of device on which the engine runs it
    output_bytes: float | None = None  #: bytes per weight of the output layer; None for bf16
    quantizes_experts: bool = False  #: also the matrices of a mixture's experts, which are no linear layers


_EVERYWHERE = frozenset({"cpu", "cuda"})

WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = MappingProxyType(
    {
        "bf16": WeightFormat(2.0, _EVERYWHERE),
        "int8": WeightFormat(1.0, _EVERYWHERE, output_bytes=1.0),
        "fp8": WeightFormat(1.0, frozenset({"cuda"})),
        "int4": WeightFormat(0.5 + 4 / 32, frozenset({"cpu"}), output_bytes=1.0),
    }
)
"""The formats of this engine (:mod:`engine.model.quantization`). ``int4`` has a 2-byte scale and a 2-byte zero point
for each group of 32 (:data:`engine.model.linears.INT4_GROUP`)."""

SERVER_WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = MappingProxyType(
    {
        "bf16": WeightFormat(2.0, frozenset({"cuda"})),
        "8 bits": WeightFormat(1.0, frozenset({"cuda"}), quantizes_experts=True),
        "4 bits": WeightFormat(0.5 + 2.5 / 128, frozenset({"cuda"}), quantizes_experts=True),
    }
)
"""The usual formats of checkpoints for model servers such as vLLM. 4 bits have a 2-byte scale and a half-byte zero
point for each group of 128 (AWQ, GPTQ)."""
_BF16_BYTES = 2
CACHE_BYTES = 2
"""Bytes of a number in the KV cache, unless that is int8: bf16 for every weight format."""
INT8_SCALE_BYTES = 4
"""Bytes of a scale in an int8 KV cache, which has one for the key and one for the value of each token and head."""
BLOCK = 16
"""Tokens in a block of the cache; the last block of a conversation is counted as full."""


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """The KV cache of one layer."""

    numbers_per_token: int  #: of keys and values together
    num_kv_heads: int
    window: int | None  #: most tokens that are kept; None for all

    def nbytes(self, context: int, kv_cache_dtype: str = "auto") -> int:
        """Returns the bytes of the cache for one conversation of ``context`` tokens."""
        kept = context if self.window is None else min(context, self.window)
        return math.ceil(kept / BLOCK) * BLOCK * self.bytes_per_token(kv_cache_dtype)

    def bytes_per_token(self, kv_cache_dtype: str) -> int:
        """Returns the bytes of a token, scales included; ``auto`` is bf16."""
        if kv_cache_dtype == "int8":
            return self.numbers_per_token + 2 * self.num_kv_heads * INT8_SCALE_BYTES
        return self.numbers_per_token * CACHE_BYTES


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a model. Sizes are in bytes."""

    name: str
    parameters: int  #: number of parameters
    linear: int  #: number of weights in linear layers other than the output layer
    experts: int  #: number of parameters in other matrices than those of linear layers and embeddings
    output: int  #: number of weights of the output layer
    is_tied: bool  #: the output layer shares its weights with the embeddings
    layers: tuple[CacheLayer, ...]
    max_context: int
    stored: str | None = None  #: of a quantized checkpoint: the sentence that says how it is stored and served
    stored_format: str | None = None  #: the quantization of a GGUF file, such as ``Q4_K_M``
    stored_bytes: int = 0  #: size of a GGUF file's weights, which the engine computes as they are stored

    def weights(self, number_format: WeightFormat, kept_bytes: int = _BF16_BYTES) -> int:
        """Returns the size of the weights in a format.

        Args:
            kept_bytes: bytes of each weight that is not quantized; by default those of bf16.

        A quantized output layer that shares its weights with the embeddings is another copy of them.
        """
        quantized = self.linear + (self.experts if number_format.quantizes_experts else 0)
        size = quantized * number_format.bytes_per_weight
        kept = self.parameters - quantized
        if number_format.output_bytes is not None:
            size += self.output * number_format.output_bytes
            kept -= 0 if self.is_tied else self.output
        return math.ceil(size + kept * kept_bytes)

    def cache_per_token(self, kv_cache_dtype: str = "auto") -> int:
        """Returns the bytes of the cache per token, as long as no sliding window is full."""
        return sum(layer.bytes_per_token(kv_cache_dtype) for layer in self.layers)

    def cache(self, context: int, kv_cache_dtype: str = "auto") -> int:
        """Returns the bytes of the cache for one conversation of ``context`` tokens."""
        return sum(layer.nbytes(context, kv_cache_dtype) for layer in self.layers)

    @property
    def window(self) -> int | None:
        """The narrowest sliding window of all layers, in tokens; None if no layer has one."""
        return min((layer.window for layer in self.layers if layer.window is not None), default=None)


def model_size(model: str) -> ModelSize:
    """Estimates a model's size without loading it.

    Args:
        model: a GGUF file, a folder with one or with a config.json, or a hub id whose config.json is in the local
            cache. Nothing is downloaded.

    Raises:
        ModelLoadError: there is no such config, or this estimate does not support the model; the message says which.
    """
    path = Path(model).expanduser()
    if path.is_file() or (path.is_dir() and not (path / "config.json").is_file()):
        file = find_model(model)
        if isinstance(file, Path) and file.is_file():
            return _size_of_gguf(file)
    return size_of_config(_config(model), model)


def _size_of_gguf(file: Path) -> ModelSize:
    opened = open_gguf(file)
    size = size_of_config(make_config(opened), opened.name)
    if opened.number_format in FLOATS:
        return size
    return replace(size, stored_format=opened.number_format, stored_bytes=opened.nbytes)


def size_of_config(config: Any, model: str) -> ModelSize:
    """Estimates a model's size from transformers' configuration of it.

    Args:
        model: its name.

    Raises:
        ModelLoadError: this estimate does not support the model; the message says why.
    """
    text = config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        raise ModelLoadError(
            f"{model} keeps compressed keys and values (multi-head latent attention), which this estimate does not "
            "support. Its server's start-up log says how large its cache is."
        )
    layers = _cache_layers(text, model)
    context = getattr(text, "max_position_embeddings", None) or 0
    return ModelSize(model, **_count(config, model), layers=layers, max_context=context, stored=_stored(config, model))


def cache_of_config(config: Any, model: str, context: int, kv_cache_dtype: str = "auto") -> int:
    """Returns the bytes of the KV cache of one conversation, from transformers' configuration; ``auto`` is bf16.

    Raises:
        ModelLoadError: this estimate does not support the model's layers.
    """
    layers = _cache_layers(config.get_text_config(), model)
    return sum(layer.nbytes(context, kv_cache_dtype) for layer in layers)


def _stored(config: Any, model: str) -> str | None:
    """Returns a sentence on how a quantized checkpoint is stored and served; None for other checkpoints."""
    fields = getattr(config, "quantization_config", None)
    if fields is None:
        return None
    try:
        found = read_format(fields if isinstance(fields, Mapping) else fields.to_dict(), model)
    except ModelLoadError as error:  # a server may read what this engine does not
        return str(error)
    served = "int8, or fp8 on a GPU" if found.is_float else "int8" if found.bits == 8 else "int4"
    return f"The checkpoint is stored as {found.label}; Deskmate serves it as {served}."


def count_parameters(config: Any, model: str) -> int:
    """Returns the number of parameters of the model that a configuration describes.

    Raises:
        ModelLoadError: transformers cannot build it.
    """
    parameters: int = _count(config, model)["parameters"]
    return parameters


def _config(model: str) -> Any:
    file = _config_file(model)
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read: {first_line(error)}.") from error
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise ModelLoadError(f"{file} names no model_type, so it is not the config of a Hugging Face model.")
    try:
        config = AutoConfig.for_model(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(
            f"{model} is a {fields['model_type']} model, which this version of transformers does not know or cannot "
            f"read: {first_line(error)}"
        ) from error
    except Exception as error:  # validating a config's fields raises other error types
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
        # Where the shape of attention differs by layer, transformers gives each layer a configuration of its own.
        layers = list(text.per_layer_config) if getattr(text, "is_heterogeneous", False) else [text] * count
        shapes = [_shape(layer) for layer in layers]
    except AttributeError as error:
        raise ModelLoadError(f"The config of {model} does not say how its attention is shaped: {error}.") from error
    window: int | None = getattr(text, "sliding_window", None)
    kinds: list[str] = getattr(text, "layer_types", None) or (
        ["sliding_attention" if window and getattr(text, "use_sliding_window", True) else "full_attention"] * count
    )
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelLoadError(
            f"{model} has layers of the kind {', '.join(sorted(unknown))}; this estimate supports full and "
            "sliding-window attention only."
        )
    return tuple(
        CacheLayer(2 * kv_heads * head_dim, kv_heads, window if kind == "sliding_attention" else None)
        for (kv_heads, head_dim), kind in zip(shapes, kinds, strict=True)
    )


def _shape(layer: Any) -> tuple[int, int]:
    """Returns a layer's number of heads of keys and values, and their size."""
    heads: int = layer.num_attention_heads
    return getattr(layer, "num_key_value_heads", None) or heads, (
        getattr(layer, "head_dim", None) or layer.hidden_size // heads
    )


def _count(config: Any, model: str) -> dict[str, Any]:
    """Returns the number of parameters by what they belong to, as fields of :class:`ModelSize`."""
    try:
        with torch.device("meta"):
            made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except (ValueError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise ModelLoadError(
            f"{model} is a {config.model_type} model, which transformers cannot build as a causal language model: "
            f"{first_line(error)}"
        ) from error
    embeddings, output = made.get_input_embeddings(), made.get_output_embeddings()
    ends = {id(parameter) for end in (embeddings, output) if end is not None for parameter in end.parameters()}
    inner = {id(parameter): parameter for parameter in made.parameters() if id(parameter) not in ends}
    linear = {id(module.weight) for module in made.modules() if isinstance(module, nn.Linear)} & inner.keys()
    return {
        "parameters": sum({id(parameter): parameter.numel() for parameter in made.parameters()}.values()),
        "linear": sum(inner[key].numel() for key in linear),
        "experts": sum(each.numel() for key, each in inner.items() if each.ndim >= 2 and key not in linear),
        "output": 0 if output is None else output.weight.numel(),
        "is_tied": output is not None and embeddings is not None and output.weight is embeddings.weight,
    }


def check_context(size: ModelSize, context: int) -> None:
    """Refuses a context longer than the model's.

    Raises:
        InvalidRequestError: the context is too long; the message names both numbers.
    """
    if size.max_context and context > size.max_context:
        raise InvalidRequestError(
            f"--context {context:,} exceeds the context of {size.name}: its config says {size.max_context:,} tokens."
        )
