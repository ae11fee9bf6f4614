"""``deskmate doctor``: checks everything that ``serve`` needs, without starting the server."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from app.cli.version import describe_version
from app.errors import StartupError
from app.models.downloads import resolve_model
from app.models.local_model import ModelError
from app.models.performance import may_have_gpu
from app.server.serving import bind, require_loopback
from app.settings import AppSettings
from app.store.maintenance.check import describe_database
from app.store.maintenance.migrate import sqlite_file
from app.store.maintenance.process_lock import require_unclaimed
from app.store.maintenance.writable_folder import require_writable_database, try_folder
from engine import (
    EngineError,
    EngineSettings,
    EngineStatus,
    ModelLoadError,
    adapter_memory,
    describe_native_decoder,
    encoder_memory,
    find_model,
    has_unused_adapter,
)

BUNDLED_MODEL: str = EngineSettings.model_fields["model"].default
BUNDLED_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``serious`` means that ``serve`` would not start."""

    subject: str
    text: str
    serious: bool = False


def examine(settings: AppSettings, engine: EngineSettings) -> Iterator[Finding]:
    """Runs all checks, cheapest first."""
    yield Finding("version", describe_version())
    yield Finding("system", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}")
    yield _tried("processor", _processor)
    if engine.native and not engine.remote_url and engine.device != "cuda":
        yield _tried("C++ decoder", describe_native_decoder)
    yield _tried("address", lambda: _address(settings))
    yield _tried("data folder", lambda: _data_folder(settings.data_dir))
    yield _tried("tool servers", lambda: _tool_servers(settings.mcp_file))
    yield _tried("database", lambda: _database(settings.resolved_database_url))
    yield _tried("backups", lambda: _backups(settings))
    yield _tried("model", lambda: _remote(engine) if engine.remote_url else _models(settings, engine))
    if engine.adapters and not engine.remote_url:
        yield _tried("adapters", lambda: _adapters(engine))
    if engine.encoder is not None and not engine.remote_url:
        yield _tried("encoder", lambda: _encoder(engine))


def _tool_servers(path: Path) -> str:
    from app.tools.mcp_file import McpFileError, read_mcp_file

    try:
        names = read_mcp_file(path)
    except McpFileError as error:
        raise StartupError(str(error)) from error
    return f"{path} defines {', '.join(names)}" if names else f"none: {path} defines no MCP servers"


def _tried(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, look())
    except StartupError as error:
        return Finding(subject, error.message, serious=True)
    except EngineError as error:
        return Finding(subject, str(error), serious=True)
    except Exception as error:  # the other checks must still be reported
        return Finding(
            subject, f"This check failed: {' '.join(str(error).split()) or type(error).__name__}.", serious=True
        )


def _processor() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    text = f"{os.cpu_count()} cores, {memory:.1f} GiB of memory, torch"
    if not may_have_gpu():
        return f"{text} {version('torch')}, no CUDA device"
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return f"{text} {torch.__version__}, {name}"


def _address(settings: AppSettings) -> str:
    require_loopback(settings.host, accounts=settings.accounts)
    bind(settings.host, settings.port).close()
    return f"{settings.host}, port {settings.port} is free"


def _data_folder(folder: Path) -> str:
    is_there = try_folder(folder, what="data folder", setting="APP_DATA_DIR")
    return f"{folder} {'is writable' if is_there else 'will be created'}"


def _database(url: str) -> str:
    file = sqlite_file(url)
    if file is not None:
        try_folder(file.parent, what="database's folder", setting="APP_DATABASE_URL or APP_DATA_DIR")
        require_unclaimed(url)
        require_writable_database(file)
    return describe_database(url)


def _backups(settings: AppSettings) -> str:
    from app.store.maintenance.backup_runs import read_state

    plan, folder = settings.backup_plan, settings.backup_folder
    if plan is None:
        return "none are scheduled: set APP_BACKUP_AT or APP_BACKUP_EVERY_HOURS"
    is_there = try_folder(folder, what="backup folder", setting="APP_BACKUP_DIR")
    state, now = read_state(settings.resolved_database_url), datetime.now(UTC)
    place = f"{folder} {'is writable' if is_there else 'will be created'}"
    last = f"the last good one is of {state.good_at:%Y-%m-%d %H:%M} UTC" if state.good_at else "none was made yet"
    problem = plan.problem(state, now)
    return f"{place}; {last}" + (f". ATTENTION: {problem}" if problem else "")


def _remote(settings: EngineSettings) -> str:
    from engine import RemoteEngine

    async def look() -> EngineStatus:
        async with RemoteEngine(settings) as engine:
            model = engine.info
            found.append(f"{model.name} on {engine.status.model}, context of {model.max_model_len:,} tokens")
            return engine.status

    found: list[str] = []
    status = asyncio.run(look())
    if status.reason is not None:
        raise StartupError(status.reason)
    return found[0]


def _models(app: AppSettings, settings: EngineSettings) -> str:
    try:
        settings = settings.model_copy(update={"model": resolve_model(settings.model, app, settings)})
    except ModelError:
        return f"{settings.model} is on the recommended list, and serve downloads it first"
    if settings.draft_model is None:
        return _model(settings)
    draft = settings.model_copy(update={"model": settings.draft_model, "revision": None})
    return f"{_model(settings)}; draft model: {_model(draft)}"


def _model(settings: EngineSettings) -> str:
    found = find_model(settings.model)
    if isinstance(found, str):
        return f"{found}, from the Hugging Face hub or its local cache"
    if found == find_model(BUNDLED_MODEL) and settings.device != "cuda":
        _check_bundled_files(found)
    else:
        from engine import prepare_model

        prepare_model(settings, lambda _stage, _fraction: None)  # reads configuration and tokenizer, not the weights
    if found.is_file():
        return f"file {found}"
    adapter = ", without the LoRA adapter in it: load it with --lora NAME=FOLDER to use it"
    return f"folder {found}{adapter if has_unused_adapter(found) else ''}"


def _adapters(settings: EngineSettings) -> str:
    sizes = {name: adapter_memory(folder) for name, folder in settings.adapters.items()}
    return ", ".join(f"{name} takes {size / 1e6:,.1f} MB of memory" for name, size in sizes.items())


def _encoder(settings: EngineSettings) -> str:
    memory = encoder_memory(settings)
    if memory is None:
        return f"{settings.encoder}, from the Hugging Face hub or its local cache"
    return (
        f"folder {memory.folder} takes {memory.weights / 1e6:,.1f} MB of memory, and {memory.vectors / 1e6:,.1f} MB "
        f"are left free for {settings.encoder_vectors:,} vectors"
    )


def _check_bundled_files(folder: Path) -> None:
    """Checks that the bundled model's files are whole, without PyTorch, whose import takes seconds.

    Its architecture, tokenizer and chat template are known to run.
    """
    for file in sorted({*folder.glob("*.json"), *(folder / name for name in BUNDLED_FILES)}):
        try:
            text = file.read_text("utf-8")
            if file.suffix == ".json":
                json.loads(text)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise ModelLoadError(
                f"The bundled model's file {file} cannot be read: {reason}. Restore it with git, or copy it again."
            ) from error
