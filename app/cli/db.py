"""``deskmate db``: upgrades, checks, backs up, restores and copies the database."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from app.cli.flags import read_settings, with_flags
from app.errors import MaintenanceError
from app.settings import AppSettings, with_driver

PIPE = Path("-")

db = typer.Typer(help="Manage the database.", no_args_is_help=True, rich_markup_mode=None)


@db.command()
@with_flags(AppSettings)
def upgrade(**flags: str | bool | None) -> None:
    """Create the database, or upgrade it to this version. ``serve`` does this automatically."""
    settings = read_settings(AppSettings, flags)

    from app.store.maintenance.migrate import migrate
    from app.store.maintenance.process_lock import claim_database

    with claim_database(settings.resolved_database_url):
        done = migrate(settings.resolved_database_url)
    if done.before == done.after:
        typer.echo(f"The database is already at schema {done.after}.")
    else:
        kept = f" A backup from before is in {done.backup}." if done.backup else ""
        typer.echo(f"The database was upgraded from {done.before or 'nothing'} to schema {done.after}.{kept}")


@db.command()
@with_flags(AppSettings)
def check(**flags: str | bool | None) -> None:
    """Check the database's schema version and integrity. Changes nothing."""
    url = read_settings(AppSettings, flags).resolved_database_url

    from app.store.maintenance.check import describe_database, inspect_history

    state = describe_database(url)
    if wrong := inspect_history(url):
        raise MaintenanceError(
            f"The database is damaged. {'. '.join(wrong)}. Restore an earlier backup: deskmate db restore FILE."
        )
    typer.echo(f"Database: {state}.")


@db.command()
@with_flags(AppSettings)
def backup(
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="A new file, a folder, or - for the standard output; default: the data folder."
        ),
    ] = None,
    **flags: str | bool | None,
) -> None:
    """Back up the whole database to one file. The server may be running."""
    settings = read_settings(AppSettings, flags)

    from app.cli.console import StageProgress
    from app.store.maintenance.backup import back_up
    from app.store.maintenance.backup_streams import back_up_into

    with StageProgress() as stages:
        url, progress = settings.resolved_database_url, partial(stages, "Copying the database")
        if to == PIPE:
            back_up_into(sys.stdout.buffer, url, settings.data_dir, progress)
            return
        file = back_up(url, settings.data_dir, to, progress)
    typer.echo(f"The backup is {file}. To go back to it: deskmate db restore {file}")


@db.command()
@with_flags(AppSettings)
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup, or - for the standard input.")],
    **flags: str | bool | None,
) -> None:
    """Replace the database with a backup; the old database is kept. The server must be stopped."""
    settings = read_settings(AppSettings, flags)
    url = settings.resolved_database_url

    from app.cli.console import StageProgress
    from app.store.maintenance.backup_streams import backup_from
    from app.store.maintenance.process_lock import claim_database
    from app.store.maintenance.restore import restore as restore_backup

    with claim_database(url), ExitStack() as stack:
        backup = stack.enter_context(backup_from(sys.stdin.buffer, settings.data_dir)) if file == PIPE else file
        progress = stack.enter_context(StageProgress())
        done = restore_backup(url, backup, partial(progress, "Copying the backup"))
    upgraded = f" It was upgraded from schema {done.revision} to {done.now}." if done.revision != done.now else ""
    kept = f" The old database is in {done.aside}." if done.aside else ""
    typer.echo(f"{'The backup' if file == PIPE else file} was restored.{upgraded}{kept}")


@db.command()
@with_flags(AppSettings)
def copy(
    to: Annotated[str, typer.Option(metavar="URL", help="An empty database, such as postgresql://user@host/name.")],
    **flags: str | bool | None,
) -> None:
    """Copy all data to another database, and compare every row. The server must be stopped.

    To resume an interrupted copy, run the same command again.
    """
    settings = read_settings(AppSettings, flags)

    from app.cli.console import StageProgress
    from app.store.maintenance.copy import copy_history, redact_url

    target = with_driver(to)
    try:
        with StageProgress() as progress:
            done = copy_history(settings.resolved_database_url, target, progress)
    except KeyboardInterrupt:
        typer.echo("The copy is not complete. Run the same command again to resume it.", err=True)
        raise
    counts = ", ".join(
        f"{count:,} {name.replace('_', ' ')}{'' if count == 1 else 's'}" for name, count in done.rows.items()
    )
    typer.echo(
        f"Everything was copied to {redact_url(target)} and compared row by row: {counts}. "
        "To use it, set APP_DATABASE_URL to it. The source database is unchanged."
    )
