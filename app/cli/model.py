"""``deskmate model``: lists, downloads and removes models, whether or not the server is running."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.flags import read_settings, with_flags
from app.errors import StartupError
from app.settings import AppSettings
from engine import EngineSettings

if TYPE_CHECKING:
    from app.models.local_model import LocalModel
    from app.models.scan import Scan

model = typer.Typer(help="List, download and remove models.", no_args_is_help=True, rich_markup_mode=None)

Flags = str | bool | None
_SOURCES = {
    "bundled": "in the box",
    "models-dir": "models folder",
    "hub-cache": "hub cache",
    "ollama": "Ollama",
    "lm-studio": "LM Studio",
}


@model.command("list")
@with_flags(AppSettings, EngineSettings)
def list_models(**flags: Flags) -> None:
    """List the models on this machine and the recommended ones.

    Says of each whether its weights fit into memory, and at most how fast one chat can be: the memory's bandwidth
    divided by the weights that one token reads.
    """
    from app.models.downloads import place_of
    from app.models.recommended import recommended_models

    engine = read_settings(EngineSettings, flags)
    own, scan = _scan(read_settings(AppSettings, flags), engine)
    _print_table([("NAME", "SIZE", "FORMAT", "CONTEXT", "FITS", "SPEED", "FOUND IN"), *_rows(scan, engine)])
    for found in scan.models:
        if found.problem is not None:
            typer.echo(f"!!  {found.name}: {found.problem}")
    typer.echo("\nRecommended, with: deskmate model get NAME")
    here = {found.target for found in scan.models if found.problem is None}
    _print_table(
        [
            (
                one.name,
                _size(one.size_mb * 1e6),
                one.licence if one.terms == "open" else f"{one.licence} (not open source)",
                one.description,
                "downloaded" if place_of(one, own) in here else "",
            )
            for one in recommended_models()
        ]
    )
    for note in scan.notes:
        typer.echo(f"deskmate: warning: {note}", err=True)


@model.command()
@with_flags(AppSettings, EngineSettings)
def get(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A recommended model, or a hub ID such as Qwen/Qwen3-0.6B or a/b:Q4_K_M."),
    ],
    **flags: Flags,
) -> None:
    """Download a model. A download that was interrupted goes on where it stopped."""
    from app.cli.console import StageProgress
    from app.models.downloads import download
    from app.models.folders import models_dir
    from app.models.local_model import ModelError

    app, engine = read_settings(AppSettings, flags), read_settings(EngineSettings, flags)
    try:
        with StageProgress() as progress:
            target = download(name, models_dir(app, engine), progress)
    except ModelError as error:
        raise StartupError(str(error)) from error
    typer.echo(f"{name} is here. Start with it: deskmate serve --model {target}")


@model.command()
@with_flags(AppSettings, EngineSettings)
def check(
    download: Annotated[
        bool, typer.Option("--download", help="Download the model first, if it is on the recommended list or the hub.")
    ] = False,
    **flags: Flags,
) -> None:
    """Check that the model of --model can run and fits into memory, without loading it. Exits with 2 if not."""
    from app.cli.console import StageProgress
    from app.models.downloads import find_or_download, resolve_model
    from app.models.folders import GUIDE
    from app.models.local_model import ModelError
    from app.models.performance import may_have_gpu
    from engine import (
        adapter_memory,
        advise_memory_limit,
        available_host_memory,
        encoder_memory,
        find_model,
        prepare_model,
    )

    app, engine = read_settings(AppSettings, flags), read_settings(EngineSettings, flags)
    if engine.remote_url:
        typer.echo(f"The model runs on {', '.join(engine.remote_url)}.")
        return
    name = engine.model
    try:
        with StageProgress() as progress:
            target = find_or_download(name, app, engine, progress) if download else resolve_model(name, app, engine)
            engine = engine.model_copy(update={"model": target})
            found = find_model(target)
            if isinstance(found, str) and not download:
                typer.echo(f"{name} is a model of the hub. With --download, it is downloaded and checked.")
                return
            if found == GUIDE.resolve() and engine.kv_cache_memory is None:  # a container's start need not wait for it
                typer.echo("The bundled guide fits into memory. It is a demo, which only knows Deskmate.")
                return
            needed = prepare_model(engine, progress)
            adapters = sum(map(adapter_memory, engine.adapters.values()))
            free = available_host_memory()
            encoder = encoder_memory(engine)
            if encoder is not None and needed + adapters + encoder.total > free and not may_have_gpu():
                raise StartupError(
                    f"{name} fits into memory, but not beside the encoder: that takes {_size(encoder.weights)}, its "
                    f"vectors {_size(encoder.vectors)} and the model {_size(needed + adapters)}, and {_size(free)} are "
                    "free. Choose a smaller model or encoder, or lower ENGINE_ENCODER_VECTORS."
                )
            if needed + adapters > free and not may_have_gpu():
                raise StartupError(
                    f"{name} fits into memory, but not its adapters, too: they take {_size(adapters)} beside "
                    f"{_size(needed)}, and {_size(free)} are free."
                )
            note = advise_memory_limit(engine, progress)
    except ModelError as error:
        raise StartupError(str(error)) from error
    beside = f", and its adapters {_size(adapters)}" if adapters else ""
    if encoder is not None:
        beside += f", and the encoder with its vectors {_size(encoder.total)}"
    typer.echo(
        f"{name} fits into memory: its weights take at most {_size(needed)}{beside}.{f' {note}' if note else ''}"
    )


@model.command()
@with_flags(AppSettings, EngineSettings)
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that deskmate model list shows.")],
    hub_cache: Annotated[
        bool, typer.Option("--hub-cache", help="Remove it from the hub's cache, which other programs may use too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    **flags: Flags,
) -> None:
    """Remove a model from the models folder. One that a server has loaded stays."""
    from app.models.removal import check_removable, remove_files

    own, scan = _scan(read_settings(AppSettings, flags), read_settings(EngineSettings, flags))
    found = _find(scan, name, own, hub_cache=hub_cache)
    folder = check_removable(found, own, hub_cache=hub_cache)
    if not yes:
        if not sys.stdin.isatty():
            raise StartupError("There is no terminal to confirm the removal. Use --yes.")
        typer.confirm(f"Remove {found.name} ({_size(found.size_bytes)}) from {folder}?", abort=True)
    remove_files(found, folder)
    typer.echo(f"{found.name} is removed: {_size(found.size_bytes)}.")


def _scan(app: AppSettings, engine: EngineSettings) -> tuple[Path, Scan]:
    """Returns the models folder, and what was found."""
    from app.models.folders import model_folders, models_dir
    from app.models.scan import find_models

    own = models_dir(app, engine)
    return own, find_models(model_folders(own))


def _find(scan: Scan, name: str, own: Path, *, hub_cache: bool) -> LocalModel:
    from app.models.downloads import place_of
    from app.models.local_model import Source
    from app.models.recommended import find_recommended

    recommended = find_recommended(name)
    names = [name] if recommended is None else [name, place_of(recommended, own), recommended.hub]
    wanted = Source.HUB_CACHE if hub_cache else Source.MODELS_DIR
    found = [model for each in names for model in scan.models if each in (model.id, model.name, model.target)]
    if not found:
        raise StartupError(f"There is no model {name} on this machine. See: deskmate model list")
    return next((model for model in found if model.source is wanted), found[0])


def _rows(scan: Scan, engine: EngineSettings) -> list[tuple[str, ...]]:
    from app.models.performance import expected_tokens_per_second, fits

    words = {True: "yes", False: "no", None: "?"}
    rows: list[tuple[str, ...]] = []
    for found in scan.models:
        speed = expected_tokens_per_second(found, engine)
        weights = found.weights
        rows.append(
            (
                found.name,
                _size(found.size_bytes),
                weights.format if weights else "damaged",
                f"{weights.context_length:,}" if weights and weights.context_length else "?",
                words[fits(found, engine)],
                f"up to {_rounded(speed):,} tokens/s" if speed else "?",
                _SOURCES[found.source.value],
            )
        )
    return rows


def _rounded(speed: float) -> int | float:
    """Two digits: the estimate knows no more."""
    if speed < 10:
        return round(speed, 1)
    digits = len(str(int(speed))) - 2
    return round(int(speed), -digits)


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.0f} MB"


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    limit = shutil.get_terminal_size((200, 24)).columns if sys.stdout.isatty() else None
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        typer.echo(line if limit is None else line[:limit])
