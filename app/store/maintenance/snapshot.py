"""A whole copy of a SQLite database as it is committed now, while others go on reading and writing it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from app.store.db.database import BUSY_TIMEOUT_MS

#: Told the share that is done, 0 to 1.
Progress = Callable[[float], None]

_PAGES = 4096
#: Whoever may read a backup may read every conversation.
_PRIVATE = 0o600


def nothing_shown(_fraction: float) -> None:
    """For callers that show no progress."""


def backup_name(database: str, revision: str, ending: str) -> str:
    """The name of a backup made now: of what, at which schema, when (UTC)."""
    return f"{database}.{revision}.{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}.{ending}"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to write beside ``path`` that gets its name, on disk for good, only where the block ends well.

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
    """Write what is committed in ``source`` into the empty file ``target``, and check that it is whole.

    Needs no claim: it holds one read transaction, which keeps no writer waiting.

    Raises:
        sqlite3.Error: ``source`` cannot be read or is damaged, or ``target`` cannot be written.
    """
    with closing(sqlite3.connect(target, isolation_level=None)) as writing:
        # Thrown away where it fails, and synchronised as a whole where it does not.
        writing.execute("PRAGMA journal_mode = OFF")
        writing.execute("PRAGMA synchronous = OFF")
        # With a transaction of its own the copy stays at one point in time; else each write would make it begin again.
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
    """Open a SQLite file that others may be writing. A missing one is not made.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000
    )


def open_at_rest(file: Path) -> sqlite3.Connection:
    """Read a SQLite file that nobody writes: nothing is made beside it, and it may lie where nothing can be.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    # Where a program has left the rest of the database in a second file, SQLite must put both together.
    rest = any(beside(file, suffix).exists() for suffix in ("-wal", "-journal"))
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=ro{'' if rest else '&immutable=1'}", uri=True, isolation_level=None
    )


def beside(file: Path, suffix: str) -> Path:
    """The file that SQLite keeps with ``file``: ``-wal``, ``-shm`` or ``-journal``."""
    return file.with_name(file.name + suffix)


def sync(path: Path) -> None:
    """Wait until the file, or the names in the folder, are on disk.

    Raises:
        OSError: the disk has failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
