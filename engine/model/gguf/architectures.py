"""The architectures of GGUF files that can be read, and how llama.cpp's converter changes their weights.

GGUF names architectures, so this table cannot avoid it. What can be recognised in the module or in the file's tensors
is not in it: biases, tied embeddings, the size of heads, norms that are stored with 1 added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from engine.errors import ModelLoadError
from engine.model.gguf.model_file import GgufModel


@dataclass(frozen=True, slots=True)
class Architecture:
    """How transformers names an architecture of llama.cpp's, and what differs between the two."""

    model_type: str  #: transformers' name
    is_permuted: bool = False
    """The rows of each head of the query and key projections alternate between the two halves that transformers' rotary
    embedding rotates: llama.cpp rotates neighbours (``LLAMA_ROPE_TYPE_NORM``)."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields of transformers' configuration that llama.cpp has as constants in its code."""
    sliding_theta: float | None = None
    """Base of the rotary embedding in layers with a sliding window, in files that name none; None: as in the others."""


ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "llama": Architecture("llama", is_permuted=True),
        "qwen2": Architecture("qwen2"),
        "qwen2moe": Architecture("qwen2_moe"),
        "qwen3": Architecture("qwen3"),
        "qwen3moe": Architecture("qwen3_moe", constants={"norm_topk_prob": True}),
        "gemma": Architecture("gemma"),
        "gemma2": Architecture("gemma2"),
        "gemma3": Architecture("gemma3_text", sliding_theta=10_000.0),
        "phi3": Architecture("phi3"),
        "granite": Architecture("granite", is_permuted=True),
        "granitemoe": Architecture("granitemoe", is_permuted=True),
        "olmo2": Architecture("olmo2"),
        "smollm3": Architecture("smollm3", is_permuted=True),
        "starcoder2": Architecture("starcoder2"),
        "gpt-oss": Architecture("gpt_oss"),
    }
)
_MIXTURE = Architecture("mixtral", is_permuted=True)
_OLMO3 = Architecture("olmo3")


def architecture_of(model: GgufModel) -> Architecture:
    """Returns what is known of a model's architecture.

    Raises:
        ModelLoadError: it is not supported.
    """
    if model.architecture == "llama" and model.integer("expert_count"):
        return _MIXTURE
    if model.architecture == "olmo2" and model.integer("attention.sliding_window"):
        return _OLMO3
    known = ARCHITECTURES.get(model.architecture)
    if known is None:
        raise ModelLoadError(
            f"{model.path} holds a {model.architecture} model, which Deskmate cannot read from a GGUF file. It reads "
            f"{', '.join(sorted(ARCHITECTURES))}. Use the safetensors weights of the model."
        )
    return known
