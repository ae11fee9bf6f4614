"""Rotary embeddings of a GGUF file, as transformers' configurations describe them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.errors import ModelLoadError
from engine.model.gguf.model_file import GgufModel

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What llama.cpp's converter takes the factors in ``rope_freqs.weight`` from; every published model has the same."""


def rope_parameters(
    model: GgufModel, known: Any, head_dim: int, fields: dict[str, Any], sliding_theta: float | None
) -> dict[str, Any]:
    """Returns the fields of a configuration that describe its rotary embedding.

    Args:
        known: transformers' configuration of this kind with its defaults.
        fields: the other fields.
        sliding_theta: of the architecture.

    Raises:
        ModelLoadError: its frequencies are scaled in a way that transformers does not have.
    """
    defaults = dict(getattr(known, "rope_parameters", None) or {})
    layered = {key: dict(value) for key, value in defaults.items() if isinstance(value, dict)}
    theta = model.number("rope.freq_base")
    if theta is not None and 0 < theta < 1:
        raise ModelLoadError(f"{model.path} is damaged: {model.architecture}.rope.freq_base is {theta}.")
    scaling = _scaling(model, head_dim, fields)
    parameters: dict[str, Any] = {"rope_type": "default", **scaling}
    if scaling.get("rope_type") == "yarn" and "truncate" in defaults:
        parameters["truncate"] = defaults["truncate"]  # llama.cpp rounds the range for all models, GPT-OSS does not
    parameters["rope_theta"] = float(theta) if theta else _default_theta(defaults)
    rotated = model.integer("rope.dimension_count") or head_dim
    if rotated < head_dim:
        parameters["partial_rotary_factor"] = rotated / head_dim
    if not layered:
        return {"rope_parameters": parameters, **_copies(known, parameters)}
    local = float(model.number("rope.freq_base_swa") or sliding_theta or parameters["rope_theta"])
    return {
        "rope_parameters": {
            "full_attention": parameters,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
    }


def _default_theta(defaults: dict[str, Any]) -> float:
    stated = defaults.get("rope_theta") or defaults.get("full_attention", {}).get("rope_theta")
    return float(stated or 10_000.0)


def _copies(known: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns fields that some configurations have beside ``rope_parameters``, with the same values."""
    names = ("original_max_position_embeddings", "partial_rotary_factor")
    return {name: parameters[name] for name in names if name in parameters and hasattr(known, name)}


def _scaling(model: GgufModel, head_dim: int, fields: dict[str, Any]) -> dict[str, Any]:
    kind = model.field("rope.scaling.type") or "linear"  # as in llama.cpp
    factor = float(model.number("rope.scaling.factor") or 1.0)
    original = model.integer("rope.scaling.original_context_length")
    if "rope_freqs.weight" in model.tensors:
        return _frequency_factors(model, head_dim, fields)
    if "rope_factors_short.weight" in model.tensors or "blk.0.rope_factors_short.weight" in model.tensors:
        return _long_rope(model, fields)
    if kind == "linear":
        return {} if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        parameters: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
        if original:
            parameters["original_max_position_embeddings"] = original
        for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            value = model.number(f"rope.scaling.{theirs}")
            if value:
                parameters[ours] = float(value)
        return parameters
    if kind in ("none", "longrope"):
        return {}
    raise ModelLoadError(f"{model.path} scales its rotary embedding by {str(kind)[:40]}, which Deskmate does not know.")


def _frequency_factors(model: GgufModel, head_dim: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Recognises Llama 3's scaling in the factors that divide the frequencies; others are kept as they are."""
    factors = _read_floats(model, "rope_freqs.weight", head_dim // 2)
    base = float(model.number("rope.freq_base") or 10_000.0)
    factor = float(factors.max())
    if np.allclose(factors, _llama3_factors(base, head_dim, factor), rtol=1e-4):
        return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    listed = factors.tolist()
    return {
        "rope_type": "longrope",
        "factor": 1.0,
        "short_factor": listed,
        "long_factor": listed,
        "attention_factor": 1.0,
        "original_max_position_embeddings": fields["max_position_embeddings"],
    }


def _llama3_factors(base: float, head_dim: int, factor: float) -> Any:
    """Returns float64 ``[head_dim / 2]``. Source: ``_compute_llama3_parameters`` in transformers."""
    low, high, original = (_LLAMA3[key] for key in _LLAMA3)
    wavelengths = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (original / wavelengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wavelengths < original / high, 1.0, np.where(wavelengths > original / low, factor, between))


def _long_rope(model: GgufModel, fields: dict[str, Any]) -> dict[str, Any]:
    original = model.integer("rope.scaling.original_context_length") or fields["max_position_embeddings"]
    prefix = "" if "rope_factors_short.weight" in model.tensors else "blk.0."
    parameters: dict[str, Any] = {
        "rope_type": "longrope",
        "factor": fields["max_position_embeddings"] / original,
        "short_factor": _read_floats(model, f"{prefix}rope_factors_short.weight").tolist(),
        "long_factor": _read_floats(model, f"{prefix}rope_factors_long.weight").tolist(),
        "original_max_position_embeddings": original,
    }
    attention = model.number("rope.scaling.attn_factor")
    if attention:
        parameters["attention_factor"] = float(attention)
    return parameters


def _read_floats(model: GgufModel, name: str, count: int | None = None) -> Any:
    """Returns a small float32 tensor.

    Raises:
        ModelLoadError: it is missing, or has another format or length.
    """
    info = model.tensors.get(name)
    if info is None or info.format != "F32" or len(info.shape) != 1 or count not in (None, info.shape[0]):
        raise ModelLoadError(f"The tensor {name} of {model.path} is missing or has an unexpected shape or format.")
    values = np.fromfile(info.path, "<f4", info.shape[0], offset=info.offset)
    if not np.isfinite(values).all() or (values <= 0).any():
        raise ModelLoadError(f"The tensor {name} of {model.path} holds values that are no factors.")
    return values
