"""Removes a model's files, from the models folder or from the hub's cache only."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from app.errors import StartupError
from app.models.folders import hub_cache as hub_cache_folder
from app.models.in_use import is_in_use
from app.models.local_model import LocalModel, Source


def check_removable(model: LocalModel, own: Path, *, hub_cache: bool) -> Path:
    """Returns the folder that the model may be removed from.

    Args:
        own: the models folder.
        hub_cache: whether the user asked for the hub's cache.

    Raises:
        StartupError: it lies elsewhere, or a server has it loaded.
    """
    if model.source is Source.HUB_CACHE and not hub_cache:
        raise StartupError(
            f"{model.name} lies in the hub's cache, which other programs may use too. To remove it there, add "
            "--hub-cache."
        )
    if model.source is not (Source.HUB_CACHE if hub_cache else Source.MODELS_DIR):
        owner = {Source.BUNDLED: "came with Deskmate", Source.OLLAMA: "belongs to Ollama"}
        said = owner.get(model.source, "does not lie there")
        if model.source is Source.LM_STUDIO:
            said = "belongs to LM Studio"
        place = "the hub's cache" if hub_cache else f"the models folder, {own}"
        raise StartupError(f"{model.name} {said}: only models in {place} can be removed here.")
    folder = hub_cache_folder() if hub_cache else own
    for path in model.paths:
        if not _is_below(path, folder):
            raise StartupError(f"{path} is not below {folder}, so it was not removed.")
    if is_in_use(model.target):
        raise StartupError(f"{model.name} is loaded by a server. Load another model there, then remove it.")
    return folder


def remove_files(model: LocalModel, folder: Path) -> None:
    """Removes the model's files, and folders below ``folder`` that are empty then.

    Raises:
        StartupError: a file cannot be removed; the message says which.
    """
    try:
        for path in model.paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            parent = path.parent
            while parent != folder and _is_below(parent, folder) and not os.listdir(parent):
                parent.rmdir()
                parent = parent.parent
    except OSError as error:
        raise StartupError(f"{error.filename} cannot be removed: {error.strerror or error}.") from error


def _is_below(path: Path, folder: Path) -> bool:
    """Whether a path lies below a folder, the links on its way followed, but not one that it is itself."""
    real = os.path.join(os.path.realpath(path.parent), path.name)
    return real.startswith(os.path.realpath(folder).rstrip(os.sep) + os.sep)
