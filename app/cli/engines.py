"""Makes the engine of a command: in this process, or on the servers of ``ENGINE_REMOTE_URL``."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from app.cli.console import StageProgress
from engine import ChatEngine, EngineSettings


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
