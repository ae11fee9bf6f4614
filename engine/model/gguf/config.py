"""Makes transformers' configuration from a GGUF file's metadata and the shapes of its tensors.

llama.cpp names the same property alike in all architectures, so one table serves them all. Shapes are taken from the
tensors where those tell, because old converters left fields out. Source of the names:
https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from transformers import CONFIG_MAPPING, AutoConfig, GenerationConfig

from engine.errors import ModelLoadError, first_line
from engine.model.gguf.architectures import architecture_of
from engine.model.gguf.files import generation_config_path
from engine.model.gguf.model_file import GgufModel
from engine.model.gguf.rope import rope_parameters
from engine.model.gguf.special_tokens import end_tokens, special_tokens
from engine.parameter_table import PARAMETERS

log = logging.getLogger(__name__)

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "context_length": ("max_position_embeddings",),
    "block_count": ("num_hidden_layers",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "attention.scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
}
"""Field of the file -> names of the same in transformers' configurations; the first that the configuration has."""
FRACTIONS = frozenset(key for key in FIELDS if key.endswith(("epsilon", "scale", "softcapping")))
REQUIRED = (
    "context_length",
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
)
SAMPLING: Final[Mapping[str, str]] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""``general.sampling`` field -> the same in transformers' generation configuration."""


def make_config(model: GgufModel) -> Any:
    """Returns transformers' configuration of a model.

    Raises:
        ModelLoadError: the architecture is unknown, or fields are missing or not valid.
    """
    architecture = architecture_of(model)
    _check_sizes(model)
    known = CONFIG_MAPPING[architecture.model_type]()
    fields: dict[str, Any] = {}
    for key, names in FIELDS.items():
        name = next((each for each in names if hasattr(known, each)), None)
        value = model.number(key) if key in FRACTIONS else model.integer(key)
        if name is not None and value is not None:
            fields[name] = value
    head_dim = _head_dim(model, fields)
    fields |= {
        "vocab_size": model.tensors["token_embd.weight"].shape[0],
        "head_dim": head_dim,
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "attention_bias": "blk.0.attn_q.bias" in model.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in model.tensors,
        "use_bias": "blk.0.attn_q.bias" in model.tensors,
        "query_pre_attn_scalar": _query_scale(model, fields, head_dim),
        **_layer_types(model),
        **architecture.constants,
    }
    fields = {name: value for name, value in fields.items() if hasattr(known, name)}
    fields |= rope_parameters(model, known, head_dim, fields, architecture.sliding_theta)
    named = special_tokens(model)
    fields |= {"bos_token_id": named.get("bos"), "pad_token_id": named.get("pad")}  # None replaces a kind's own id
    fields["eos_token_id"] = sorted(end_tokens(model)) or None
    try:
        return AutoConfig.for_model(architecture.model_type, **fields)
    except Exception as error:  # validating a configuration's fields raises errors of several libraries
        raise ModelLoadError(f"The metadata of {model.path} is not valid: {' '.join(str(error).split())}") from error


def make_generation_config(model: GgufModel, config: Any) -> GenerationConfig:
    """Returns the sampling parameters that the file recommends, and the tokens that end a reply.

    A ``generation_config.json`` beside the file, see :func:`generation_config_path`, comes before what the file says.

    Raises:
        ModelLoadError: a field has no valid value, or the JSON file cannot be read.
    """
    fields: dict[str, Any] = {}
    for key, name in SAMPLING.items():
        value = model.metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            fields[name] = float(str(np.float32(value))) if isinstance(value, float) else value
    fields |= _beside(generation_config_path(model.path))
    if fields:
        fields["do_sample"] = True
    try:
        return GenerationConfig(
            eos_token_id=config.eos_token_id,
            bos_token_id=config.bos_token_id,
            pad_token_id=config.pad_token_id,
            **fields,
        )
    except ValueError as error:
        raise ModelLoadError(f"The sampling fields of {model.path} are not valid: {first_line(error)}") from error


def _beside(path: Path) -> dict[str, Any]:
    """Returns the sampling parameters in a JSON file; none if there is no such file."""
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stated, dict):
            raise ValueError("it holds no object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read: {first_line(error)}.") from error
    known = {parameter.config_name for parameter in PARAMETERS.values()} - {""}
    return {name: value for name, value in stated.items() if name in known}


def _check_sizes(model: GgufModel) -> None:
    """Refuses sizes that the tensors do not have, before anything is made of so many layers or experts."""
    for key in REQUIRED:
        if not model.integer(key):
            raise ModelLoadError(f"{model.path} is incomplete: it has no {model.architecture}.{key}.")
    embeddings, router = model.tensors.get("token_embd.weight"), model.tensors.get("blk.0.ffn_gate_inp.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise ModelLoadError(f"{model.path} has no token_embd.weight of two dimensions, so it is no language model.")
    actual = {"block_count": model.num_layers, "embedding_length": embeddings.shape[1]}
    if router is not None:
        actual["expert_count"] = router.shape[0]
    for key, value in actual.items():
        stated = model.integer(key)
        if stated != value:
            raise ModelLoadError(
                f"{model.path} is damaged or incomplete: {model.architecture}.{key} is {stated}, and its tensors have "
                f"{value}."
            )


def _head_dim(model: GgufModel, fields: Mapping[str, Any]) -> int:
    """Returns the size of an attention head, from the projections' shapes if the file has no field for it."""
    heads = fields["num_attention_heads"]
    query, fused = model.tensors.get("blk.0.attn_q.weight"), model.tensors.get("blk.0.attn_qkv.weight")
    stated, values = model.integer("attention.key_length"), model.integer("attention.value_length")
    if stated is not None and values not in (None, stated):
        raise ModelLoadError(
            f"The keys of {model.path} have {stated} numbers and its values {values}; Deskmate reads models in which "
            "they are alike."
        )
    if stated:
        return stated
    if query is not None:
        return query.shape[0] // heads or 1
    if fused is not None:
        return fused.shape[0] // (heads + 2 * fields.get("num_key_value_heads", heads)) or 1
    return int(fields["hidden_size"]) // heads or 1


def _layer_types(model: GgufModel) -> dict[str, list[str]]:
    """Returns which layers have a sliding window, if the file says so of each; otherwise the kind's own rule holds."""
    pattern = model.field("attention.sliding_window_pattern")
    if not isinstance(pattern, np.ndarray):
        return {}
    if len(pattern) != model.num_layers or pattern.dtype != np.bool_:
        raise ModelLoadError(
            f"{model.path} is damaged: {model.architecture}.attention.sliding_window_pattern does not say of each of "
            f"its {model.num_layers} layers whether it has a window."
        )
    return {"layer_types": ["sliding_attention" if is_sliding else "full_attention" for is_sliding in pattern]}


def _query_scale(model: GgufModel, fields: Mapping[str, Any], head_dim: int) -> int:
    """Returns the number whose root divides the scores of Gemma's attention.

    llama.cpp tells the largest model of each generation by its number of layers: there it is the hidden size divided
    by the number of heads. Source: ``f_attention_scale`` in src/llama-model.cpp.
    """
    largest = {"gemma2": 46, "gemma3": 62}.get(model.architecture)
    if fields["num_hidden_layers"] == largest:
        return int(fields["hidden_size"]) // int(fields["num_attention_heads"])
    return head_dim
