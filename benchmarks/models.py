"""Makes models of known shapes with random weights; speed does not depend on the weights' values."""

from __future__ import annotations

from itertools import islice, product
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)


def make_s(path: Path) -> Path:
    """Makes model S: Llama shape, 31.8 M parameters, vocabulary 16,000, 4,096 positions, tied embeddings, bfloat16."""
    torch.manual_seed(1234)
    config = LlamaConfig(
        vocab_size=16_000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    _byte_pairs(config.vocab_size).save_pretrained(path)
    return path


def make_m(path: Path) -> Path:
    """Makes model M: Qwen3 shape, 473 M parameters, vocabulary 32,000, 4,096 positions, tied embeddings, bfloat16."""
    torch.manual_seed(1234)
    config = Qwen3Config(
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    _byte_pairs(config.vocab_size).save_pretrained(path)
    return path


def make_gemma3(path: Path) -> Path:
    """Makes model G: Gemma 3's shape at 270 M, vocabulary 262,144, tied embeddings, bfloat16.

    Its tokenizer has the first 16,000 ids.
    """
    config = Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=512,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return _on_device(Gemma3ForCausalLM, config, path)


def make_smollm2(path: Path) -> Path:
    """Makes SmolLM2-135M's shape, tied embeddings, bfloat16, with a tokenizer for the first 16,000 ids."""
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return _on_device(LlamaForCausalLM, config, path)


def make_qwen3_06b(path: Path) -> Path:
    """Makes Qwen3-0.6B's shape, tied embeddings, bfloat16, with a tokenizer for the first 16,000 ids."""
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return _on_device(Qwen3ForCausalLM, config, path)


def make_llama_8b(path: Path) -> Path:
    """Makes Llama-3-8B's shape, bfloat16, 16 GB, with a tokenizer for the first 16,000 ids."""
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return _on_device(LlamaForCausalLM, config, path)


def _on_device(architecture: type[PreTrainedModel], config: PreTrainedConfig, path: Path) -> Path:
    """Makes a large model, on the GPU if there is one, because random weights take long on a CPU."""
    torch.manual_seed(1234)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = architecture(config)
    model.to(torch.bfloat16).cpu().save_pretrained(path)
    _byte_pairs(16_000).save_pretrained(path)
    return path


def _byte_pairs(vocab_size: int) -> PreTrainedTokenizerFast:
    """Makes a byte-level BPE tokenizer of exactly ``vocab_size`` tokens: two markers, all bytes, then byte pairs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(islice(product(alphabet, alphabet), vocab_size - 2 - len(alphabet)))
    words = ["<s>", "</s>", *alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
