"""Backups through pipes, for a server in a container. A temporary file in between is checked like any other backup."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from app.errors import MaintenanceError
from app.store.maintenance.backup import back_up
from app.store.maintenance.snapshot import Progress, nothing_shown


def back_up_into(stream: BinaryIO, url: str, folder: Path, progress: Progress = nothing_shown) -> None:
    """Writes a backup of the database at ``url`` into ``stream``, starting only when the backup is complete.

    Args:
        url: from ``AppSettings.resolved_database_url``; the database may be in use.
        folder: for the temporary file; created if missing.

    Raises:
        MaintenanceError: there is nothing to back up, or it cannot be written.
        StartupError: the URL is not supported.
    """
    if stream.isatty():
        raise MaintenanceError(
            "A backup is binary and is not shown on a terminal. Redirect it to a file: --to - > FILE."
        )
    with _temporary_folder(folder) as temporary:
        file = back_up(url, temporary, progress=progress)
        try:
            with file.open("rb") as opened:
                shutil.copyfileobj(opened, stream)
            stream.flush()
        except OSError as error:
            raise MaintenanceError(
                f"The backup cannot be written to the standard output: {error.strerror or error}. The output is "
                "incomplete and cannot be restored."
            ) from error


@contextmanager
def backup_from(stream: BinaryIO, folder: Path) -> Iterator[Path]:
    """Yields the backup that ``stream`` delivers, as a temporary file.

    Raises:
        MaintenanceError: the stream is empty, or cannot be stored in ``folder``.
    """
    if stream.isatty():
        raise MaintenanceError("The standard input is a terminal. Redirect a backup to it: - < FILE.")
    with _temporary_folder(folder) as temporary:
        file = temporary / "standard-input"
        try:
            with file.open("wb") as written:
                shutil.copyfileobj(stream, written)
        except OSError as error:
            raise MaintenanceError(f"The backup cannot be stored in {folder}: {error.strerror or error}.") from error
        if not file.stat().st_size:
            raise MaintenanceError("Nothing came through the standard input, so there is nothing to restore.")
        yield file


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that only this user can read; deleted at the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = TemporaryDirectory(prefix="backup-", dir=folder)
    except OSError as error:
        raise MaintenanceError(
            f"The folder {folder} cannot be written: {error.strerror or error}. Make it writable, or choose another "
            "with APP_DATA_DIR."
        ) from error
    with temporary as name:
        yield Path(name)
