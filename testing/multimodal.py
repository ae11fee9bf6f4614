"""Saves tiny random multimodal models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig, PreTrainedModel

from testing.models import NO_TOKEN, WINDOW, draw_weights
from testing.tokenizers import byte_level_tokenizer

_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "embed_dim": 32,
    "out_hidden_size": 64,
    "image_size": 32,
    "patch_size": 16,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
SPECIAL: dict[str, dict[str, Any]] = {
    "gemma3": {
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "llava": {},
    "mistral3": {},
    "qwen2_5_vl": {"rope_parameters": _MROPE},
    "qwen3_vl": {"rope_parameters": {**_MROPE, "mrope_interleaved": True}},
    "qwen3_vl_moe": {
        "rope_parameters": {**_MROPE, "mrope_interleaved": True},
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
"""Model type -> what its text part needs besides."""


def make_multimodal(path: Path, model_type: str) -> PreTrainedModel:
    """Saves a tiny fp32 model with a tokenizer, and returns it."""
    tokenizer = byte_level_tokenizer(400)
    fields = AutoConfig.for_model(model_type).to_dict()
    del fields["model_type"]
    text: dict[str, Any] = {**fields["text_config"], **_TEXT, "vocab_size": -(-len(tokenizer) // 32) * 32}
    text.pop("layer_types", None)
    vision = fields["vision_config"]
    tiny_vision = {**vision, **{name: value for name, value in _VISION.items() if name in vision}}
    token_ids = {name: 1 for name in fields if name.endswith(("token_id", "token_index"))}
    config = AutoConfig.for_model(
        model_type,
        **{
            **fields,
            **token_ids,
            **({"mm_tokens_per_image": 1} if "mm_tokens_per_image" in fields else {}),
            "text_config": {**text, **SPECIAL[model_type], "bos_token_id": 1, "eos_token_id": 1},
            "vision_config": tiny_vision,
        },
    )
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(config).to(torch.float32).eval()
    draw_weights(model, seed=0, std=0.25)
    model.generation_config = GenerationConfig(eos_token_id=NO_TOKEN, pad_token_id=0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return model
