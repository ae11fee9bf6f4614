"""Reads LoRA adapters (arXiv 2106.09685) from folders in PEFT's format.

A folder holds ``adapter_config.json`` and ``adapter_model.safetensors``. An adapted layer computes
``W x + scale * B (A x)``, with ``scale = lora_alpha / r``, or ``lora_alpha / sqrt(r)`` with rsLoRA (arXiv 2312.03732).
Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from engine.errors import ModelLoadError, first_line
from engine.model.adapter_files import CONFIG, WEIGHTS, base_model_of

_PICKLED = "adapter_model.bin"
_TENSOR = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<factor>[AB])\.weight")
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "lora_bias": "biases (lora_bias)",
    "modules_to_save": "whole layers (modules_to_save)",
    "layer_replication": "replicated layers (layer_replication)",
    "target_parameters": "parameters of experts (target_parameters)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow routing (arrow_config)",
}
"""Fields of the configuration that change what an adapter computes, and what they stand for."""
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of ``init_lora_weights`` with which PEFT changes the base's weights when it loads the adapter."""


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The low-rank update of a linear layer: it adds ``b @ (a @ x)``."""

    a: Tensor  #: float32 ``[rank, inputs]``
    b: Tensor  #: float32 ``[outputs, rank]``, multiplied with the scale


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """An adapter as its folder holds it."""

    pairs: Mapping[str, LoraPair]  #: by the names of the base model's layers
    content_id: bytes  #: 16 bytes, a hash of both files
    base_model: str | None  #: what it was trained on, by its configuration

    @property
    def max_rank(self) -> int:
        return max(len(pair.a) for pair in self.pairs.values())


def read_adapter(folder: Path, sizes: Mapping[str, tuple[int, int]], model: str) -> PeftAdapter:
    """Reads an adapter for a model.

    Args:
        sizes: the outputs and inputs of each linear layer that can be adapted.
        model: the name of the model, for messages.

    Raises:
        ModelLoadError: a file is missing or damaged, the adapter is of an unsupported kind, or for another model.
    """
    where = f"The adapter in {folder} cannot be loaded"
    if not (folder / CONFIG).is_file():
        raise ModelLoadError(f"{where}: there is no {CONFIG}. Give the folder that PEFT's save_pretrained wrote.")
    if not (folder / WEIGHTS).is_file():
        if (folder / _PICKLED).is_file():
            raise ModelLoadError(
                f"{where}: its weights are pickled ({_PICKLED}), which can run any code. Save it as safetensors."
            )
        raise ModelLoadError(f"{where}: there is no {WEIGHTS}.")
    try:
        written, stored = (folder / CONFIG).read_bytes(), (folder / WEIGHTS).read_bytes()
        config: Any = json.loads(written)
        tensors = load(stored)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise ModelLoadError(f"{where}: {first_line(error)}.") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{where}: {CONFIG} is not an object.")
    base_model = base_model_of(config)
    try:
        _check_kind(config)
        pairs = _read_pairs(tensors, _Scales.of(config), sizes)
    except _UnfitError as error:
        made_for = f" It was made for {base_model}; the loaded model is {model}." if error.is_other_base else ""
        raise ModelLoadError(f"{where}: {error}.{made_for}") from error
    content_id = blake2b(blake2b(written).digest() + blake2b(stored).digest(), digest_size=16).digest()
    return PeftAdapter(pairs, content_id, base_model)


class _UnfitError(Exception):
    def __init__(self, message: str, *, is_other_base: bool = False) -> None:
        super().__init__(message)
        self.is_other_base = is_other_base  #: whether another base model is the likely cause


def _check_kind(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise _UnfitError(f"its peft_type is {_shown(kind)}, and only LORA is supported")
    for field, name in _UNSUPPORTED.items():
        if config.get(field):
            raise _UnfitError(f"it uses {name}, which is not supported")
    if (bias := config.get("bias", "none")) != "none":
        raise _UnfitError(f"it changes biases (bias is {_shown(bias)}), which is not supported")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        raise _UnfitError(
            f"it was started with init_lora_weights={_shown(start)}, which changes the base's weights; save it with "
            "path_initial_model_for_weight_conversion"
        )


@dataclass(frozen=True, slots=True)
class _Scales:
    """Ranks and scales, as the configuration gives them for each layer."""

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    uses_rslora: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _Scales:
        ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
        rank, alpha = config.get("r"), config.get("lora_alpha")
        for field, pattern in (("rank_pattern", ranks), ("alpha_pattern", alphas)):
            if not isinstance(pattern, dict):
                raise _UnfitError(f"{field} is {_shown(pattern)}, not an object")
        for one in (rank, *ranks.values()):
            if not isinstance(one, int) or isinstance(one, bool) or one < 1:
                raise _UnfitError(f"the rank {_shown(one)} is not a whole number of at least 1")
        for one in (alpha, *alphas.values()):
            if not isinstance(one, int | float) or isinstance(one, bool) or not _is_finite(one):
                raise _UnfitError(f"lora_alpha is {_shown(one)}, not a number")
        assert isinstance(rank, int)
        assert isinstance(alpha, int | float)
        return cls(rank, alpha, ranks, alphas, bool(config.get("use_rslora")))

    def rank_of(self, layer: str) -> int:
        return self.ranks.get(_pattern_of(layer, self.ranks), self.rank)

    def scale_of(self, layer: str) -> float:
        alpha, rank = self.alphas.get(_pattern_of(layer, self.alphas), self.alpha), self.rank_of(layer)
        return alpha / (math.sqrt(rank) if self.uses_rslora else rank)


def _pattern_of(layer: str, patterns: Mapping[str, object]) -> str:
    """Returns the first pattern that a layer's name ends with, as PEFT's ``get_pattern_key`` does."""
    try:
        return next((one for one in patterns if re.match(rf"(.*\.)?({one})$", layer)), "")
    except (re.error, OverflowError, RecursionError) as error:
        raise _UnfitError(f"a pattern of its ranks is not a regular expression ({error})") from error


def _read_pairs(
    tensors: Mapping[str, Tensor], scales: _Scales, sizes: Mapping[str, tuple[int, int]]
) -> dict[str, LoraPair]:
    factors: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise _UnfitError(f"it holds {_shown(name)}, and only the factors A and B of linear layers are supported")
        if not tensor.is_floating_point() or tensor.ndim != 2 or not bool(torch.isfinite(tensor).all()):
            raise _UnfitError(f"{_shown(name)} is not a matrix of finite numbers")
        factors.setdefault(found["layer"], {})[found["factor"]] = tensor.float()
    if not factors:
        raise _UnfitError("it has no weights")
    pairs: dict[str, LoraPair] = {}
    for layer, both in sorted(factors.items()):
        if layer not in sizes:
            raise _UnfitError(
                f"it adapts {_shown(layer)}, which is no linear layer of the model that can be adapted",
                is_other_base=True,
            )
        if len(both) < 2:
            raise _UnfitError(f"one of the factors A and B of {_shown(layer)} is missing")
        (outputs, inputs), rank = sizes[layer], scales.rank_of(layer)
        for factor, expected in (("A", (rank, inputs)), ("B", (outputs, rank))):
            shape = tuple(both[factor].shape)
            if shape != expected:
                is_rank = (shape[1], shape[0])[factor == "B"] == (inputs, outputs)[factor == "B"]
                raise _UnfitError(
                    f"the factor {factor} of {_shown(layer)} is {shape[0]} by {shape[1]}, where rank {rank} and the "
                    f"model's {inputs} inputs and {outputs} outputs need {expected[0]} by {expected[1]}",
                    is_other_base=not is_rank,
                )
        scaled = both["B"] * scales.scale_of(layer)
        if not bool(torch.isfinite(scaled).all()):
            raise _UnfitError(f"its lora_alpha scales the factor B of {_shown(layer)} beyond the numbers of float32")
        pairs[layer] = LoraPair(both["A"], scaled)
    return pairs


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond the floats
        return False


def _shown(value: object) -> str:
    return repr(value)[:100]
