"""Writes models in llama.cpp's GGUF format.

llama.cpp's own converter needs a tokenizer that it knows. The bench sends token ids, so any token names will do here.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from safetensors import safe_open
from transformers import AutoConfig

QUANTIZE = """
import ctypes, sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.nthread = int(sys.argv[3]), 2
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
"""

ARCHITECTURES = {
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}


def write(source: Path, target: Path) -> None:
    """Writes a model in bfloat16, with norms in float32 as llama.cpp has them."""
    config = AutoConfig.from_pretrained(source)
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture is None:
        raise ValueError(f"only {', '.join(ARCHITECTURES)} are written for llama.cpp here, not {config.model_type}")
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"])
    if architecture is gguf.MODEL_ARCH.GEMMA3:
        writer.add_sliding_window(config.sliding_window)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_names(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(str(file), "pt") as weights:
            for key in weights.keys():  # noqa: SIM118
                name = names.get_name(key, try_suffixes=(".weight",))
                if name is None:
                    raise ValueError(f"llama.cpp has no name for {key}")
                tensor = weights.get_tensor(key)
                if architecture is gguf.MODEL_ARCH.LLAMA and key.endswith(("q_proj.weight", "k_proj.weight")):
                    heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
                    tensor = _interleaved(tensor, heads)
                if architecture is gguf.MODEL_ARCH.GEMMA3 and tensor.dim() == 1:
                    tensor = tensor.float() + 1  # norms multiply by one more than their weight
                _add(writer, name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    if tensor.dim() == 1:
        writer.add_tensor(name, tensor.float().numpy())
        return
    data = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)


def _interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders the rows of a Llama's query or key projection to llama.cpp's rotary order."""
    rows, columns = tensor.shape
    return tensor.view(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _add_names(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """Adds a vocabulary in which each token is named after its id."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{token}" for token in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
