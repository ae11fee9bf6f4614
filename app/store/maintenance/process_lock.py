"""One process per SQLite file: a second server would take the first one's running replies for abandoned."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from app.errors import StartupError
from app.store.maintenance.migrate import sqlite_file
from app.store.maintenance.writable_folder import cannot_write

_OWN_FOLDER = "give this one a folder of its own with APP_DATA_DIR"


@contextmanager
def claim_database(url: str, *, alternative: str = _OWN_FOLDER) -> Iterator[None]:
    """Holds a lock on the database at ``url`` for this process. The system releases it when the process dies.

    PostgreSQL needs no lock. For SQLite the folder is created if missing.

    Args:
        url: from ``AppSettings.resolved_database_url``.
        alternative: the user's alternative to stopping the other process, for the error text.

    Raises:
        StartupError: the folder cannot be written, or another process holds the lock.
    """
    file = sqlite_file(url)
    if file is None:
        yield
        return
    lock = _lock_of(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Opened for appending, so that the holder's process id can be read if the lock is taken.
        handle = lock.open("a+")
    except OSError as error:
        raise _cannot_open(lock, error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(file, handle, alternative) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def require_unclaimed(url: str) -> None:
    """Checks that :func:`claim_database` would get the lock, without creating a file.

    Raises:
        StartupError: as :func:`claim_database`.
    """
    file = sqlite_file(url)
    if file is None:
        return
    try:
        handle = _lock_of(file).open("r+")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_open(_lock_of(file), error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once, when the file is closed
        except BlockingIOError as error:
            raise _in_use(file, handle, _OWN_FOLDER) from error


def _lock_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.lock")


def _cannot_open(lock: Path, error: OSError) -> StartupError:
    if os.path.exists(lock):  # unlike Path.exists, False below a folder that may not be searched
        return StartupError(
            f"The file {lock} cannot be opened: {error.strerror or error}. Change its owner or permissions, or choose "
            "another folder with APP_DATA_DIR."
        )
    return cannot_write(lock.parent, error, what="database's folder", setting="APP_DATABASE_URL or APP_DATA_DIR")


def _in_use(file: Path, handle: TextIO, alternative: str) -> StartupError:
    handle.seek(0)
    holder = handle.read().strip()
    return StartupError(
        f"Another Deskmate{f' (process {holder})' if holder else ''} is using {file}. Stop it first, or {alternative}."
    )
