"""Copies a SQLite database's committed state while other processes read and write it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from app.store.db.database import BUSY_TIMEOUT_MS

#: Called with the progress, 0 to 1.
Progress = Callable[[float], None]

_PAGES = 4096
#: A backup contains every conversation, so only its owner may read it.
_PRIVATE = 0o600


def nothing_shown(_fraction: float) -> None:
    """A progress callback that shows nothing."""


def backup_name(database: str, revision: str, ending: str) -> str:
    """The file name of a backup made now: source, schema revision, time (UTC)."""
    return f"{database}.{revision}.{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}.{ending}"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside ``path`` that is synced and renamed to ``path`` only if the block succeeds.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.touch(mode=_PRIVATE)
    try:
        yield unfinished
        sync(unfinished)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


def copy_database(source: sqlite3.Connection, target: Path, progress: Progress = nothing_shown) -> None:
    """Writes the committed state of ``source`` into the empty file ``target`` and checks its integrity.

    Needs no lock on the database: it holds one read transaction, which blocks no writer.

    Raises:
        sqlite3.Error: ``source`` cannot be read or is damaged, or ``target`` cannot be written.
    """
    with closing(sqlite3.connect(target, isolation_level=None)) as writing:
        # The target needs no journal: it is deleted on failure and synced as a whole on success.
        writing.execute("PRAGMA journal_mode = OFF")
        writing.execute("PRAGMA synchronous = OFF")
        # A read transaction pins the copy to one point in time; otherwise each write would restart it.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master")
        source.backup(
            writing, pages=_PAGES, progress=lambda _, left, total: progress((total - left) / total if total else 1.0)
        )
        source.execute("ROLLBACK")
    with closing(open_at_rest(target)) as copy:
        verdict = str(copy.execute("PRAGMA integrity_check(1)").fetchone()[0])
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"it is damaged ({' '.join(verdict.split())})")


def open_live(file: Path) -> sqlite3.Connection:
    """Opens a SQLite file that other processes may be writing. Does not create a missing one.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000
    )


def open_at_rest(file: Path) -> sqlite3.Connection:
    """Opens a SQLite file that no process writes. Creates no companion files, so its folder may be read-only.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    # If a program has left part of the database in a companion file, SQLite must merge the two.
    rest = any(beside(file, suffix).exists() for suffix in ("-wal", "-journal"))
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=ro{'' if rest else '&immutable=1'}", uri=True, isolation_level=None
    )


def beside(file: Path, suffix: str) -> Path:
    """SQLite's companion file of ``file``: ``-wal``, ``-shm`` or ``-journal``."""
    return file.with_name(file.name + suffix)


def sync(path: Path) -> None:
    """Waits until a file's data, or a folder's entries, are on disk.

    Raises:
        OSError: the disk has failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
