"""Makes LoRA adapters in PEFT's format, and merges them by the formula that PEFT documents: ``W + scale * B A``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.model.adapter_files import CONFIG, WEIGHTS

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(
    folder: Path,
    base: Path,
    *,
    seed: int = 1,
    rank: int = 4,
    targets: Sequence[str] = TARGETS,
    std: float = 0.3,
    **config: Any,
) -> Path:
    """Saves an adapter of random weights for a model; returns its folder. ``rank_pattern`` counts where it is given."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    ranks: dict[str, int] = config.get("rank_pattern", {})
    for name, (outputs, inputs) in _linears(base).items():
        last = name.rpartition(".")[2]
        if last not in targets:
            continue
        own = next((value for pattern, value in ranks.items() if re.match(rf"(.*\.)?({pattern})$", name)), rank)
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(own, inputs, generator=generator) * std
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(outputs, own, generator=generator) * std
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    values = {
        "peft_type": "LORA",
        "base_model_name_or_path": "an-org/a-base",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
        **config,
    }
    (folder / CONFIG).write_text(json.dumps(values))
    return folder


def merge(base: Path, adapter: Path, to: Path) -> Path:
    """Saves the base model with an adapter merged into its weights, in float32; returns the folder ``to``."""
    config = json.loads((adapter / CONFIG).read_text())
    tensors = load_file(adapter / WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for name in tensors:
        layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if not name.endswith(".lora_A.weight"):
            continue
        a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
        rank = len(a)
        alpha = next(
            (value for one, value in config.get("alpha_pattern", {}).items() if re.match(rf"(.*\.)?({one})$", layer)),
            config["lora_alpha"],
        )
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        model.get_submodule(layer).weight.data += scale * (b @ a)
    model.save_pretrained(to)
    return to


def _linears(base: Path) -> dict[str, tuple[int, int]]:
    model = AutoModelForCausalLM.from_pretrained(base)
    return {
        name: (part.out_features, part.in_features)
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear)
    }
