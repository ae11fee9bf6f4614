"""Saves tiny random models of the families that the engine is tested with.

Weights come from a wide distribution, N(0, 0.2-0.3): with the default initialisation (0.02) a tiny model repeats one
token whatever its cache holds, and a comparison of greedy outputs would prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from testing.tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

WINDOW = 16
NO_TOKEN = 1_000_000
_ALTERNATING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 2}


@dataclass(frozen=True)
class Family:
    """An architecture by its transformers type, with the configuration in which it differs from Llama."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    sentencepiece: bool = False  #: otherwise the tokenizer is byte-level


#: New ones come last: a family's place is the seed of its weights in tests that must see a fault.
FAMILIES = {
    "llama": Family("llama", sentencepiece=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "mistral": Family("mistral", {"sliding_window": None}, sentencepiece=True),
    "mistral-window": Family("mistral", {"sliding_window": WINDOW}, sentencepiece=True),
    "gemma2": Family("gemma2", {**_ALTERNATING, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0}, True),
    "gemma3": Family("gemma3_text", {**_ALTERNATING, "query_pre_attn_scalar": 16}, sentencepiece=True),
    "phi3": Family("phi3", {"sliding_window": 2 * WINDOW}, sentencepiece=True),
    "olmo2": Family("olmo2"),
    "smollm3": Family("smollm3", {"no_rope_layers": [1, 0]}),
    "granite": Family(
        "granite",
        {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 2.0, "embedding_multiplier": 3.0},
    ),
    "cohere2": Family("cohere2", {**_ALTERNATING, "logit_scale": 1.0}),
    "glm4": Family("glm4", {"partial_rotary_factor": 0.5}),
    "gpt-neox": Family("gpt_neox"),
    "qwen3-moe": Family("qwen3_moe", {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 32}),
    "mixtral": Family("mixtral", {**_EXPERTS, "num_local_experts": 4}, sentencepiece=True),
    "gpt-oss": Family("gpt_oss", {**_EXPERTS, **_ALTERNATING, "num_local_experts": 4}),
    "granitemoe": Family(
        "granitemoe",
        {
            **_EXPERTS,
            "num_local_experts": 4,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
            "embedding_multiplier": 3.0,
        },
    ),
    "qwen2-moe": Family(
        "qwen2_moe",
        {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 96},
    ),
    "olmo3": Family("olmo3", {"sliding_window": WINDOW}),
    "starcoder2": Family("starcoder2", {"sliding_window": None}),
    "gemma": Family("gemma", {"hidden_activation": "gelu_pytorch_tanh"}, sentencepiece=True),
}


def make_model(
    path: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    std: float = 0.25,
    vocab_size: int = 400,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    max_position_embeddings: int = 512,
    tie_word_embeddings: bool = False,
    eos: bool | list[int] = True,
    chat_template: bool = True,
    generation: dict[str, object] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Saves a tiny fp32 model with tokenizer, chat template and generation config; returns ``path``.

    The model's vocabulary is rounded up to a multiple of 32 as real ones are: the last ids exist in the logits and
    have no text.

    Args:
        family: one of ``FAMILIES``.
        eos: whether the model has an end-of-sequence token (without one, replies run to their full length), or the
            ids of its end-of-sequence tokens.
        generation: entries of ``generation_config.json`` beside the token ids.
        config: entries of ``config.json`` beside the family's.
    """
    known = FAMILIES[family]
    make_tokenizer = sentencepiece_tokenizer if known.sentencepiece else byte_level_tokenizer
    tokenizer: PreTrainedTokenizerBase = make_tokenizer(vocab_size, chat_template=chat_template)
    token_ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": eos if isinstance(eos, list) else tokenizer.eos_token_id if eos else None,
        "pad_token_id": tokenizer.pad_token_id,
    }
    values = {
        "vocab_size": -(-len(tokenizer) // 32) * 32,
        "hidden_size": hidden,
        "intermediate_size": hidden * 2,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": tie_word_embeddings,
        **token_ids,
        **known.config,
        **(config or {}),
    }
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(known.model_type, **values))
    model.to(torch.float32)
    draw_weights(model, seed=seed, std=std)
    if eos is False:  # with None the tokenizer's would be used
        token_ids["eos_token_id"] = NO_TOKEN
    model.generation_config = GenerationConfig(**token_ids, **(generation or {}))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def draw_weights(model: PreTrainedModel, *, seed: int, std: float) -> None:
    """Sets random weights: N(0, std) for matrices and biases; norm weights stay near 1, N(1, 0.1)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.ndim == 1 and name.endswith("norm.weight")
            parameter.copy_(1.0 + 0.1 * noise if is_norm else std * noise)
