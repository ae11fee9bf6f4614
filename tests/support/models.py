"""Tiny random models on disk, of the four families the engine is measured against.

Weights are drawn wide, from N(0, 0.2-0.3): with the default initialisation (0.02) a tiny model repeats one token
whatever its cache holds, and a comparison of greedy outputs would prove nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.support.tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

Arch = Literal["llama", "qwen2", "qwen3", "mistral"]
ARCHS: tuple[Arch, ...] = ("llama", "qwen2", "qwen3", "mistral")

_FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}


def make_model(
    path: Path,
    arch: Arch = "llama",
    *,
    seed: int = 0,
    std: float = 0.25,
    vocab_size: int = 400,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    max_position_embeddings: int = 512,
    sliding_window: int | None = None,
    tie_word_embeddings: bool = False,
    eos: bool | list[int] = True,
    chat_template: bool = True,
    generation: dict[str, object] | None = None,
) -> Path:
    """Save a tiny fp32 model with tokenizer, chat template and generation config; returns ``path``.

    Llama and Mistral get the SentencePiece tokenizer, Qwen2 and Qwen3 the byte-level one. The model's vocabulary is
    rounded up to a multiple of 32 as real ones are: the last ids exist in the logits and have no text.

    Args:
        sliding_window: in tokens, for every layer; only ``mistral`` takes one here.
        eos: whether the model knows an end-of-sequence token (without one, replies run to their full length), or
            which tokens it takes for one.
        generation: entries of ``generation_config.json`` beside the token ids.
    """
    if sliding_window is not None and arch != "mistral":
        raise ValueError(f"sliding_window is for mistral (got {arch})")
    make_tokenizer = sentencepiece_tokenizer if arch in ("llama", "mistral") else byte_level_tokenizer
    tokenizer: PreTrainedTokenizerBase = make_tokenizer(vocab_size, chat_template=chat_template)
    config_class, model_class = _FAMILIES[arch]
    token_ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": eos if isinstance(eos, list) else tokenizer.eos_token_id if eos else None,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = config_class(
        vocab_size=-(-len(tokenizer) // 32) * 32,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie_word_embeddings,
        dtype=torch.float32,
        **token_ids,
        **({"sliding_window": sliding_window} if arch == "mistral" else {}),
    )
    model: PreTrainedModel = model_class(config).to(torch.float32)
    _draw_weights(model, seed=seed, std=std)
    model.generation_config = GenerationConfig(**token_ids, **(generation or {}))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _draw_weights(model: PreTrainedModel, *, seed: int, std: float) -> None:
    """N(0, std) for matrices and biases; norm weights stay near 1, N(1, 0.1)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.ndim == 1 and name.endswith("norm.weight")
            parameter.copy_(1.0 + 0.1 * noise if is_norm else std * noise)
