"""Backups through pipes, for a server in a container: whole files in between, checked like any other."""

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
    """Write a backup of the database at ``url`` into ``stream``. Nothing of it is written before it is whole.

    Args:
        url: as ``AppSettings.resolved_database_url`` gives it; the database may be in use.
        folder: where the backup is made first, and taken away again; made where it is missing.

    Raises:
        MaintenanceError: there is nothing to back up, or it cannot be written.
        StartupError: the URL is not a database this program knows.
    """
    if stream.isatty():
        raise MaintenanceError("A backup is nothing to read on a screen. Send it into a file: --to - > FILE.")
    with _room_in(folder) as temporary:
        file = back_up(url, temporary, progress=progress)
        try:
            with file.open("rb") as opened:
                shutil.copyfileobj(opened, stream)
            stream.flush()
        except OSError as error:
            raise MaintenanceError(
                f"The backup cannot be written to the standard output: {error.strerror or error}. What has arrived "
                "is not a backup."
            ) from error


@contextmanager
def backup_from(stream: BinaryIO, folder: Path) -> Iterator[Path]:
    """What comes through ``stream``, as a file for as long as the block takes.

    Raises:
        MaintenanceError: nothing comes, or it cannot be kept in ``folder``.
    """
    if stream.isatty():
        raise MaintenanceError("No backup comes through the standard input. Send it from a file: - < FILE.")
    with _room_in(folder) as temporary:
        file = temporary / "standard-input"
        try:
            with file.open("wb") as written:
                shutil.copyfileobj(stream, written)
        except OSError as error:
            raise MaintenanceError(f"The backup cannot be kept in {folder}: {error.strerror or error}.") from error
        if not file.stat().st_size:
            raise MaintenanceError("Nothing came through the standard input, so there is nothing to restore.")
        yield file


@contextmanager
def _room_in(folder: Path) -> Iterator[Path]:
    """A folder that only we may look into, and that is gone afterwards."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = TemporaryDirectory(prefix="backup-", dir=folder)
    except OSError as error:
        raise MaintenanceError(
            f"The folder {folder} cannot be written: {error.strerror or error}. Make it writable, or name another one "
            "with APP_DATA_DIR."
        ) from error
    with temporary as name:
        yield Path(name)
