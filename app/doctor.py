"""``deskmate doctor``: looks at everything ``serve`` needs, without starting it."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.errors import StartupError
from app.serving import bind, require_loopback
from app.settings import AppSettings
from app.store.check import database_state
from engine import EngineSettings, EngineStatus, ModelLoadError, RemoteEngine, find_model


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``serious`` means that ``serve`` would not start."""

    subject: str
    text: str
    serious: bool = False


def examine(settings: AppSettings, engine: EngineSettings) -> Iterator[Finding]:
    """Everything worth knowing before a start, cheapest first."""
    yield Finding("system", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}")
    yield Finding("processor", _processor())
    yield _tried("address", lambda: _address(settings))
    yield _tried("data folder", lambda: _data_folder(settings.data_dir))
    yield _tried("database", lambda: database_state(settings.resolved_database_url))
    yield _tried("model", lambda: _remote(engine) if engine.remote_url else _model(engine.model))


def _tried(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, look())
    except StartupError as error:
        return Finding(subject, error.message, serious=True)


def _processor() -> str:
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    text = f"{os.cpu_count()} cores, {memory:.1f} GiB of memory, torch {torch.__version__}"
    if torch.cuda.is_available():
        return f"{text}, {torch.cuda.get_device_name()}"
    return f"{text}, no CUDA device"


def _address(settings: AppSettings) -> str:
    require_loopback(settings.host, accounts=settings.accounts)
    bind(settings.host, settings.port).close()
    return f"{settings.host}, port {settings.port} is free"


def _data_folder(folder: Path) -> str:
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise StartupError(
            f"The data folder {folder} cannot be written. Make it writable, or name another one with APP_DATA_DIR."
        )
    return f"{folder} {'can be written' if folder.exists() else 'will be made'}"


def _remote(settings: EngineSettings) -> str:
    async def look() -> EngineStatus:
        async with RemoteEngine(settings) as engine:
            model = engine.info
            found.append(f"{model.name} on {engine.status.model}, context of {model.max_model_len:,} tokens")
            return engine.status

    found: list[str] = []
    try:
        status = asyncio.run(look())
    except ModelLoadError as error:
        raise StartupError(str(error)) from error
    if status.reason is not None:
        raise StartupError(status.reason)
    return found[0]


def _model(name: str) -> str:
    try:
        found = find_model(name)
    except ModelLoadError as error:
        raise StartupError(str(error)) from error
    return f"folder {found}" if isinstance(found, Path) else f"{name}, from the Hugging Face hub or its local cache"
