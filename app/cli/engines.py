"""Makes the engine of a command: in this process, or on the servers of ``ENGINE_REMOTE_URL``."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from app.cli.console import StageProgress
from app.errors import StartupError
from app.settings import AppSettings
from engine import ChatEngine, EngineSettings

if TYPE_CHECKING:
    from app.models.wheel_download import Progress


def make_engine(settings: EngineSettings, progress: StageProgress) -> AbstractAsyncContextManager[ChatEngine]:
    """Returns the engine, which entering it starts.

    Raises:
        ModelLoadError: there is no such model, or an address is invalid.
    """
    if settings.remote_url:
        from engine import RemoteEngine

        return RemoteEngine(settings)
    from engine import Engine, find_model

    find_model(settings.model)  # a wrong folder is refused at once, before anything else starts
    return Engine(settings, progress=progress)


def with_found_model(settings: AppSettings, engine: EngineSettings, progress: Progress) -> EngineSettings:
    """Replaces a name of the recommended list, such as ``smollm2``, by what it stands for, downloaded if need be.

    Raises:
        StartupError: it cannot be downloaded; says why.
    """
    if engine.remote_url:
        return engine
    from app.models.downloads import find_or_download
    from app.models.local_model import ModelError

    try:
        target = find_or_download(engine.model, settings, engine, progress)
    except ModelError as error:
        raise StartupError(str(error)) from error
    return engine.model_copy(update={"model": target})
