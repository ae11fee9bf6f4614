"""The folders in which models are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.models.local_model import Source
from app.settings import AppSettings
from engine import PROJECT_ROOT, EngineSettings

GUIDE = PROJECT_ROOT / "models" / "guide"
"""The model in the box."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that is searched, and whose it is."""

    source: Source
    path: Path


def models_dir(app: AppSettings, engine: EngineSettings) -> Path:
    """Returns the folder that downloaded models are put into; it may not exist yet."""
    return engine.models_dir or app.data_dir / "models"


def model_folders(own: Path) -> list[ModelFolder]:
    """Returns the folders to search, each once, existing or not.

    Args:
        own: from :func:`models_dir`.
    """
    folders: dict[Path, ModelFolder] = {}
    for source, path in _candidates(own):
        folders.setdefault(path.absolute(), ModelFolder(source, path))
    return list(folders.values())


def hub_cache() -> Path:
    from huggingface_hub import constants  # reads HF_HOME and HF_HUB_CACHE

    return Path(constants.HF_HUB_CACHE)


def _candidates(own: Path) -> Iterator[tuple[Source, Path]]:
    yield Source.BUNDLED, GUIDE
    yield Source.MODELS_DIR, own
    yield Source.HUB_CACHE, hub_cache()
    home = _home()
    if named := os.environ.get("OLLAMA_MODELS"):
        yield Source.OLLAMA, Path(named)
    if home is not None:
        yield Source.OLLAMA, home / ".ollama" / "models"
    yield Source.OLLAMA, Path("/usr/share/ollama/.ollama/models")
    if home is not None:
        yield Source.LM_STUDIO, home / ".lmstudio" / "models"
        yield Source.LM_STUDIO, home / ".cache" / "lm-studio" / "models"


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # the user has no home folder
        return None
