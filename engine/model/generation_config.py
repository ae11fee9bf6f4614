"""Reads a model's generation config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ModelLoadError, first_line

if TYPE_CHECKING:
    from transformers import GenerationConfig


def load_generation_config(folder: Path, name: str) -> GenerationConfig:
    """Returns the folder's generation config, otherwise what its config.json says, as transformers does."""
    from transformers.generation.configuration_utils import GenerationConfig  # the package would import models' code

    try:
        try:
            return GenerationConfig.from_pretrained(folder)
        except OSError:
            return GenerationConfig.from_pretrained(folder, config_file_name="config.json", _from_model_config=True)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"The generation_config.json of {name} cannot be read: {first_line(error)}") from error
