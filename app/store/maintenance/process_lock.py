"""One process per SQLite file: a second server would take the first one's running replies for abandoned."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import StartupError
from app.store.maintenance.migrate import sqlite_file
from app.store.maintenance.writable_folder import cannot_write


@contextmanager
def claim_database(
    url: str, *, alternative: str = "give this one a folder of its own with APP_DATA_DIR"
) -> Iterator[None]:
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
    lock = file.with_name(f"{file.name}.lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Opened for appending, so that the holder's process id can be read if the lock is taken.
        handle = lock.open("a+")
    except OSError as error:
        raise cannot_write(file.parent, error, what="data folder", setting="APP_DATA_DIR") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            holder = handle.read().strip()
            raise StartupError(
                f"Another Deskmate{f' (process {holder})' if holder else ''} is using {file}. "
                f"Stop it first, or {alternative}."
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield
