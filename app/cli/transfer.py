"""``deskmate export`` and ``deskmate import``, for the local user or, with accounts, a named one."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.cli.console import StageProgress
from app.domain.ids import LOCAL_USER_ID
from app.errors import InvalidInput, StartupError
from app.settings import AppSettings
from app.store.accounts.accounts import AccountRecords
from app.store.chat.responses import ResponseRecords
from app.store.chat.transfer import TransferRecords
from app.store.db.database import Database
from app.store.knowledge.source_rights import SourceRights
from app.store.maintenance.check import inspect_database
from app.store.maintenance.migrate import migrate
from app.store.maintenance.process_lock import claim_database
from app.transfer.service import Export, ExportFormat, Transfers


async def export_to(settings: AppSettings, target: Path | None, format: ExportFormat, user: str | None = None) -> None:
    """Exports every conversation of a user to ``target``, completely or not at all.

    Args:
        target: the file; ``-`` is the standard output, None a new file in the working directory.
        user: the name to sign in with; None is the local user.

    Raises:
        NotFound: no user has that name.
        StartupError: there is no database of this version.
        InvalidInput: the file exists already, or cannot be written.
    """
    _require_current(settings.resolved_database_url)
    async with _transfers(settings, user) as (transfers, user_id):
        with StageProgress() as progress:
            export = await transfers.export_all(
                user_id, format, lambda fraction: progress("Exporting conversations", fraction)
            )
            if str(target) == "-":
                async for piece in export.pieces:
                    sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
                return
            written = await _write(export, target or Path(export.name))
    print(f"Every conversation was exported to {written}.", file=sys.stderr)  # noqa: T201 - stdout may be the export


async def import_from(settings: AppSettings, file: Path, user: str | None = None) -> str:
    """Imports a file; returns a sentence with the counts.

    Args:
        user: the name to sign in with; None is the local user.

    Raises:
        NotFound: no user has that name.
        StartupError: another process has claimed the database.
        AppError: the file cannot be read, or is malformed.
    """
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from error
    with opened, claim_database(settings.resolved_database_url, alternative="import the file through its page"):
        migrate(settings.resolved_database_url)
        async with _transfers(settings, user) as (transfers, user_id):
            with StageProgress() as progress:
                counts = await transfers.import_file(
                    user_id, opened, file.name, lambda fraction: progress(f"Reading {file.name}", fraction)
                )
    conversations = "1 conversation was" if counts.imported == 1 else f"{counts.imported:,} conversations were"
    return f"{conversations} imported; {counts.already_there:,} already existed."


@asynccontextmanager
async def _transfers(settings: AppSettings, user: str | None) -> AsyncIterator[tuple[Transfers, str]]:
    database = Database(settings.resolved_database_url)
    try:
        user_id = LOCAL_USER_ID if user is None else await AccountRecords(database).id_of(user)
        yield (
            Transfers(
                TransferRecords(database, SourceRights(database).closed),
                ResponseRecords(database),
                max_import_mb=settings.max_import_mb,
                max_message_chars=settings.max_message_chars,
            ),
            user_id,
        )
    finally:
        await database.close()


def _require_current(url: str) -> None:
    state = inspect_database(url, whole=False)
    if state.revision is None:
        raise StartupError("There is no database to export from yet. Check APP_DATABASE_URL and APP_DATA_DIR.")
    if not state.current:
        raise StartupError(
            f"The database has schema {state.revision}, and this Deskmate works with {state.wanted}. "
            + ("Run deskmate db upgrade first." if state.known else "Use the newer version that wrote it.")
        )


def _require_new(target: Path) -> None:
    if target.exists():
        raise InvalidInput(f"{target} already exists. Choose another file with --to, or move that one away.")


async def _write(export: Export, target: Path) -> Path:
    _require_new(target)
    unfinished = target.with_name(f"{target.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            async for piece in export.pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise InvalidInput(f"{target} cannot be written: {error.strerror}.") from error
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return target
