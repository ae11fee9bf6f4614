"""The files of a LoRA adapter in PEFT's format: finds them in a model's folder, and measures their memory.

:mod:`engine.model.lora` applies the adapters that are given by name. One in a model's own folder is applied, by
transformers, only where PEFT is installed; elsewhere this is always reported.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError, first_line

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_ANY_WEIGHTS = "adapter_model*.safetensors"


def has_unused_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter that is not applied."""
    return _has_adapter(folder) and not is_adapter_applied(folder)


def is_adapter_applied(folder: Path) -> bool:
    """Whether the folder holds an adapter that transformers applies while it loads: with PEFT installed, it does."""
    if not _has_adapter(folder):
        return False
    from transformers.utils import is_peft_available

    return bool(is_peft_available())


def is_adapter_only(folder: Path) -> bool:
    """Whether the folder holds an adapter and no model."""
    has_weights = set(folder.glob("*.safetensors")) > set(folder.glob(_ANY_WEIGHTS))
    return _has_adapter(folder) and not ((folder / "config.json").is_file() and has_weights)


def _has_adapter(folder: Path) -> bool:
    return any(folder.glob(_ANY_WEIGHTS)) or (folder / CONFIG).is_file()


def adapter_alone(name: str, folder: Path) -> ModelLoadError:
    """Returns the error for a folder that holds an adapter without its model."""
    base = _base_model(folder)
    return ModelLoadError(
        f"{name} holds a LoRA adapter{f' for {base}' if base else ''} and not a whole model. Give its base model as "
        f"the model, and the adapter beside it: --lora NAME={folder}"
    )


def adapter_memory(folder: Path) -> int:
    """Returns the bytes that a PEFT folder's adapter takes in memory, in float32; only the file's header is read.

    Raises:
        ModelLoadError: the folder holds no adapter, or a damaged one.
    """
    file = folder / WEIGHTS
    if not (folder / CONFIG).is_file() or not file.is_file():
        raise ModelLoadError(f"{folder} holds no LoRA adapter: it needs {CONFIG} and {file.name}.")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{file} cannot be read: {first_line(error)}.") from error
    return sum(4 * math.prod(shape) for shape in shapes)


def base_model_of(config: Any) -> str | None:
    """Returns the name of the model that an adapter was trained on; None if its configuration has none to show."""
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return name if isinstance(name, str) and name.isprintable() and 0 < len(name) < 200 else None


def _base_model(folder: Path) -> str | None:
    try:
        return base_model_of(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
