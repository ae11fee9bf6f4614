"""Writes tiny models as GGUF files, the way llama.cpp's converter does.

Source: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from transformers import AutoModelForCausalLM, AutoTokenizer

from testing.models import make_model

Edit = Callable[[gguf.GGUFWriter], None]


@dataclass(frozen=True)
class Conversion:
    """How the converter names a family of ``testing.models`` and changes its weights."""

    architecture: str
    is_permuted: bool = False
    adds_one: bool = False  #: to the weights of norms
    fields: dict[str, str] = field(default_factory=dict)  #: the file's field -> transformers' configuration's
    config: dict[str, Any] = field(default_factory=dict)  #: what llama.cpp has as constants
    writes_layer_types: bool = False  #: which layers have a sliding window


_GEMMA = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
_GRANITE = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
CONVERSIONS = {
    "llama": Conversion("llama", is_permuted=True),
    "qwen2": Conversion("qwen2"),
    "qwen3": Conversion("qwen3"),
    "gemma": Conversion("gemma", adds_one=True, config={"tie_word_embeddings": True}),
    "gemma2": Conversion(
        "gemma2", adds_one=True, fields=_GEMMA, config={"layer_types": None, "tie_word_embeddings": True}
    ),
    "gemma3": Conversion("gemma3", adds_one=True, config={"layer_types": None, "final_logit_softcapping": None}),
    "olmo2": Conversion("olmo2"),
    "olmo3": Conversion("olmo2", writes_layer_types=True),
    "smollm3": Conversion("smollm3", is_permuted=True, config={"no_rope_layers": None}),
    "granite": Conversion("granite", is_permuted=True, fields=_GRANITE),
    "granitemoe": Conversion(
        "granitemoe",
        is_permuted=True,
        fields={**_GRANITE, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    ),
    "phi3": Conversion("phi3"),
    "mixtral": Conversion(
        "llama",
        is_permuted=True,
        fields={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    ),
    "qwen2-moe": Conversion(
        "qwen2moe",
        fields={
            **_EXPERTS,
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
    ),
    "starcoder2": Conversion("starcoder2"),
    "gpt-oss": Conversion(
        "gpt-oss",
        fields={
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
        },
        config={"layer_types": None},
    ),
    "qwen3-moe": Conversion(
        "qwen3moe",
        fields={**_EXPERTS, "expert_feed_forward_length": "moe_intermediate_size"},
        config={"norm_topk_prob": True},
    ),
}
FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


def make_gguf(
    path: Path,
    family: str = "llama",
    format_: str = "F32",
    *,
    hidden: int = 64,
    pre: str = "gpt-2",
    edit: Edit | None = None,
    **options: Any,
) -> Path:
    """Saves a tiny model beside ``path`` (in the folder of its name), and as a GGUF file; returns ``path``.

    Args:
        family: one of ``CONVERSIONS``.
        format_: GGML's name; rows that do not fill its blocks stay in F32.
        pre: how a byte-level vocabulary splits text, by llama.cpp's name.
        edit: called with the writer before anything is written, to add fields.
        options: of :func:`testing.models.make_model`.
    """
    conversion = CONVERSIONS[family]
    config = {**conversion.config, **options.pop("config", {})}
    folder = make_model(path.with_suffix(""), family, hidden=hidden, config=config, **options)
    write_gguf(folder, path, conversion, GGMLQuantizationType[format_], pre, edit)
    return path


def write_gguf(
    folder: Path,
    path: Path,
    conversion: Conversion,
    kind: GGMLQuantizationType,
    pre: str = "gpt-2",
    edit: Edit | None = None,
) -> None:
    """Converts a folder of safetensors."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = model.config
    writer = gguf.GGUFWriter(path, conversion.architecture)
    _add_fields(writer, config, conversion)
    add_vocabulary(writer, folder, config.vocab_size, pre)
    if edit is not None:
        edit(writer)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == conversion.architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    rng = np.random.default_rng(0)
    tied = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    for key, tensor in model.state_dict().items():
        if key in tied:
            continue
        if ".experts." in key:
            for name, part in _experts(key, tensor, conversion):
                _add_tensor(writer, name, part, kind, rng)
            continue
        suffixes = (".weight", ".bias")
        name = names.get_name(key, try_suffixes=suffixes)
        if name is None:  # the converter knows the router of Granite's mixtures by its name in the published files
            name = names.get_name(key.replace(".router.", ".router.layer."), try_suffixes=suffixes)
        assert name is not None, key
        if key.endswith("sinks"):
            name += ".weight"
        if conversion.is_permuted and ".q_proj." in key:
            tensor = _interleaved(tensor, config.num_attention_heads)
        if conversion.is_permuted and ".k_proj." in key:
            tensor = _interleaved(tensor, config.num_key_value_heads)
        if conversion.adds_one and key.endswith("norm.weight"):
            tensor = tensor + 1
        _add_tensor(writer, name, tensor, kind, rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _experts(key: str, tensor: torch.Tensor, conversion: Conversion) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the file's tensors of a mixture's experts with their names."""
    prefix, suffix = f"blk.{key.split('.')[2]}.ffn_", "bias" if key.endswith("_bias") else "weight"
    alternates = conversion.architecture == "gpt-oss"  # inputs before outputs, and gate and up projections alternate
    if alternates and suffix == "weight":
        tensor = tensor.transpose(1, 2)
    if "down_proj" in key:
        yield f"{prefix}down_exps.{suffix}", tensor
        return
    gate, up = (tensor[:, ::2], tensor[:, 1::2]) if alternates else tensor.chunk(2, dim=1)
    yield f"{prefix}gate_exps.{suffix}", gate
    yield f"{prefix}up_exps.{suffix}", up


def quantized(numbers: np.ndarray[Any, Any], kind: GGMLQuantizationType, rng: np.random.Generator) -> Any:
    """Returns a matrix in a block format: quantized where the package ``gguf`` can, otherwise random blocks."""
    try:
        return gguf.quantize(numbers, kind)
    except NotImplementedError:
        return random_blocks(kind, numbers.shape[:-1], numbers.shape[-1], rng)


def random_blocks(kind: GGMLQuantizationType, rows: tuple[int, ...], inputs: int, rng: np.random.Generator) -> Any:
    """Returns random blocks with small scales: uint8 ``[*rows, bytes of a row]``."""
    size, nbytes = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*rows, inputs // size, nbytes), dtype=np.uint8)
    for at in _SCALES[kind.name]:
        scales = rng.uniform(-0.01, 0.01, blocks.shape[:-1]).astype("<f2")
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(*rows, -1)


_SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
}
"""Format -> bytes within a block at which its float16 scales begin."""


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path, rows: int, pre: str) -> None:
    """Adds a folder's tokenizer and chat template, and tokens that nothing uses up to the embedding's ``rows``."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend = tokenizer.backend_tokenizer
    is_byte_level = type(backend.decoder).__name__ == "ByteLevel"
    size = backend.get_vocab_size()
    tokens = [backend.id_to_token(index) for index in range(size)]
    added = {index: token.special for index, token in tokenizer.added_tokens_decoder.items()}
    kinds = [gguf.TokenType.NORMAL] * size
    for index, token in enumerate(tokens):
        if index in added:
            kinds[index] = gguf.TokenType.CONTROL if added[index] else gguf.TokenType.USER_DEFINED
        elif not is_byte_level and token.startswith("<0x"):
            kinds[index] = gguf.TokenType.BYTE
    tokens += [f"[PAD{index}]" for index in range(size, rows)]
    kinds += [gguf.TokenType.UNUSED] * (rows - size)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if is_byte_level:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_bos_token_id(tokenizer.convert_tokens_to_ids("<|im_start|>"))
        gguf.SpecialVocab(folder, load_merges=True).add_to_gguf(writer)
        return
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_scores([0.0 if kinds[index] != gguf.TokenType.NORMAL else -float(index) for index in range(rows)])
    writer.add_add_bos_token(True)
    for name in ("bos", "eos", "unk"):
        token = getattr(tokenizer, f"{name}_token_id")
        if token is not None:
            getattr(writer, f"add_{name}_token_id")(token)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _add_fields(writer: gguf.GGUFWriter, config: Any, conversion: Conversion) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(config.norm_epsilon)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if conversion.writes_layer_types:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    for key, name in conversion.fields.items():
        value = getattr(config, name)
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{conversion.architecture}.{key}", value)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, kind: GGMLQuantizationType, rng: np.random.Generator
) -> None:
    numbers = tensor.squeeze().contiguous().numpy()  # the gate of a shared expert is a vector there
    if numbers.ndim == 1 or "ffn_gate_inp" in name or numbers.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType.F32
    data = quantized(numbers, kind, rng)
    writer.add_tensor(name, data, raw_dtype=kind)


def _interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders the rows of a query or key projection to llama.cpp's rotary order."""
    rows = tensor.shape[0]
    return tensor.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(tensor.shape)


def split_gguf(path: Path, stem: Path, count: int) -> list[Path]:
    """Splits a file into ``count`` parts as llama.cpp's ``gguf-split`` does: only the first has the metadata."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(path)
    parts = [Path(f"{stem}-{number + 1:05d}-of-{count:05d}.gguf") for number in range(count)]
    for number, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for key, field_ in reader.fields.items():
            if number == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                writer.add_key_value(
                    key, field_.contents(), field_.types[0], field_.types[-1] if len(field_.types) > 1 else None
                )
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts
