"""Tiny configurations of every causal language model that transformers knows.

A type's own defaults keep its structure (the kind of each layer's attention, the layers with experts). The sizes
shrink wherever the configuration, or one nested in it, has a field of :data:`SIZES`. :data:`SPECIAL` holds what a
type needs in addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine import EngineSettings, ModelLoadError
from engine.execution.load import load_model
from engine.model.load import prepare_model
from engine.model.loaded_model import LoadedModel
from testing.models import NO_TOKEN, draw_weights
from testing.tokenizers import byte_level_tokenizer

CAUSAL_TYPES: Final[tuple[str, ...]] = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))

#: Types that transformers cannot build: it needs a package that is not installed, or refuses its own configuration.
UNMAKEABLE: Final[frozenset[str]] = frozenset({"gemma3n", "gemma4_assistant"})

WINDOW = 8

_HIDDEN = 64  #: in four heads of the smallest width that the C++ decoder takes
_HEADS = 4
_KV_HEADS = 2
_LAYERS = 2
_CONTEXT = 128
_EXPERTS = 4

SIZES: Final[Mapping[str, object]] = MappingProxyType(
    {
        **dict.fromkeys(("hidden_size", "n_embd", "d_model", "emb_dim", "embedding_dim", "embedding_size"), _HIDDEN),
        **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), _LAYERS),
        **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), _HEADS),
        **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), _KV_HEADS),
        "head_dim": _HIDDEN // _HEADS,
        **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), _CONTEXT),
        **dict.fromkeys(
            ("intermediate_size", "ffn_hidden_size", "ffn_dim", "decoder_ffn_dim", "n_inner", "d_inner"), 2 * _HIDDEN
        ),
        **dict.fromkeys(
            (
                "moe_intermediate_size",
                "shared_expert_intermediate_size",
                "expert_ffn_hidden_size",
                "shared_intermediate_size",
                "dense_intermediate_size",
                "intermediate_size_mlp",
                "shared_experts_intermediate_size",
            ),
            _HIDDEN,
        ),
        **dict.fromkeys(
            ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
            _EXPERTS,
        ),
        **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "topk"), 2),
        **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_groups"), 1),
        **dict.fromkeys(("sliding_window", "local_attention", "sliding_window_size"), WINDOW),
        **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
        # Multi-head latent attention.
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
        **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
        "qk_head_dim": 16,
        # Sizes that are not products of other sizes.
        "query_pre_attn_scalar": _HIDDEN // _HEADS,
        "vocab_size_per_layer_input": 320,
        "hidden_size_per_layer_input": 8,
    }
)
"""Configuration field -> tiny value."""

_SHARED_KEYS = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
"""The last two layers read the keys and values stored by the first two."""

SPECIAL: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "cohere_compass_text": {
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
        },
        "ctrl": {"dff": 2 * _HIDDEN},
        "dbrx": {
            "attn_config": {"model_type": "dbrx", "rope_theta": 10000.0, "kv_n_heads": _KV_HEADS, "clip_qkv": 8.0}
        },
        "dots1": {"n_routed_experts": _EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2},
        "gemma3n_text": {
            **_SHARED_KEYS,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
            "intermediate_size": [2 * _HIDDEN] * 4,
            "laurel_rank": 8,
        },
        "gemma4_assistant": {
            "text_config": {
                "model_type": "gemma4_text",
                "hidden_size_per_layer_input": 0,
                "vocab_size_per_layer_input": 0,
            }
        },
        "gemma4_text": {**_SHARED_KEYS, "per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}}},
        "gemma4_unified_text": {**_SHARED_KEYS, "per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}}},
        "deepseek_v2": {"n_routed_experts": _EXPERTS, "num_experts_per_tok": 2},
        "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
        "jetmoe": {"kv_channels": _HIDDEN // _HEADS},
        "laguna": {"num_attention_heads_per_layer": [_HEADS] * _LAYERS},
        "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
        "longcat_flash": {"zero_expert_num": 2},
        "moshi": {"sliding_window": _CONTEXT},  # its cache has a window, its attention has none
        "opt": {"word_embed_proj_dim": _HIDDEN},
        "xmod": {"default_language": "en_XX"},
        "roc_bert": {"shape_vocab_size": 16, "pronunciation_vocab_size": 16},
    }
)
"""Model type -> fields of its tiny configuration."""


@cache
def _tokenizer() -> PreTrainedTokenizerBase:
    return byte_level_tokenizer(320)


def save_description(model_type: str, folder: Path) -> Path:
    """Saves a type's full-size default configuration, a tokenizer and a weights file without weights."""
    default_config(model_type).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    save_file({}, folder / "model.safetensors")
    return folder


def save_tiny_model(model_type: str, folder: Path) -> Path:
    """Saves a model of some ten thousand weights with a wide distribution, see :mod:`testing.models`.

    Raises:
        Exception: transformers cannot build such a model.
    """
    model_config = tiny_config(model_type)
    model = AutoModelForCausalLM.from_config(model_config).float().eval()
    draw_weights(model, seed=0, std=0.25)
    # Without an EOS token each reply runs to its full length; with None the tokenizer's would be used.
    model.generation_config = GenerationConfig(eos_token_id=NO_TOKEN, pad_token_id=0)
    model.save_pretrained(folder)
    model_config.save_pretrained(folder)  # the model may have saved only a part of it
    _tokenizer().save_pretrained(folder)
    return folder


def load_exactly(folder: Path, **changes: Any) -> LoadedModel:
    """Loads a model in fp32 with every step through transformers, unless ``changes`` override that."""
    return load_model(_settings(folder, **changes), lambda _stage, _fraction: None)


def load_or_refuse(model_type: str, parent: Path) -> tuple[LoadedModel | str, Path]:
    """Returns a loaded tiny model of a type, or the error message that refuses it, and its folder."""
    folder = save_description(model_type, parent / "description")
    try:
        prepare_model(_settings(folder), lambda _stage, _fraction: None)
    except ModelLoadError as refusal:
        return str(refusal), folder
    if model_type not in UNMAKEABLE:
        folder = save_tiny_model(model_type, parent / "model")
    try:
        return load_exactly(folder), folder
    except ModelLoadError as refusal:
        return str(refusal), folder


def _settings(folder: Path, **changes: Any) -> EngineSettings:
    return EngineSettings(**{"model": str(folder), "dtype": "float32", "device": "cpu", "native": False, **changes})


def default_config(model_type: str) -> PreTrainedConfig:
    """Returns a type's default configuration; for ``gemma4_assistant`` contradictory defaults are corrected."""
    return AutoConfig.for_model(model_type, **(SPECIAL[model_type] if model_type == "gemma4_assistant" else {}))


def tiny_config(model_type: str) -> PreTrainedConfig:
    """Returns the configuration of a model of some ten thousand weights."""
    vocab_size = -(-len(_tokenizer()) // 32) * 32
    return AutoConfig.for_model(**_shrink(default_config(model_type).to_dict(), vocab_size))


def _shrink(fields: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    special = SPECIAL.get(fields["model_type"], {})
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if name in special or (value is None and name not in ("head_dim", "num_key_value_heads")):
            continue
        elif isinstance(value, dict) and "model_type" in value:
            small[name] = _shrink(value, vocab_size)
        elif name in ("layer_types", "mlp_layer_types") and isinstance(value, list):
            small[name] = _kinds(value)
        elif name == "vocab_size":
            small[name] = vocab_size
        elif name.endswith(("token_id", "token_index")):
            small[name] = 1
        elif name in SIZES and value != 0:
            small[name] = SIZES[name]
        else:
            small[name] = value
    if small.get("kv_lora_rank"):
        small["num_key_value_heads"] = _HEADS
        if "head_dim" in small:
            small["head_dim"] = SIZES["qk_rope_head_dim"]
    return {**small, **special}


def _kinds(values: list[str]) -> list[str]:
    """Returns one kind per layer, with every kind present."""
    kinds = list(dict.fromkeys(values))
    return (kinds * _LAYERS)[: max(_LAYERS, len(kinds))]
