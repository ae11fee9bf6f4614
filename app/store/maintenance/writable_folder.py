"""Tests by writing whether a folder is writable: permissions do not reveal a full or read-only disk."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from app.errors import StartupError

_PROBE = bytes(2**20)  #: more than a new database takes


def try_folder(folder: Path, *, what: str, setting: str) -> bool:
    """Writes and removes a file in ``folder``. A missing folder is created for the test and removed again.

    Args:
        what: the folder's role, such as ``data folder``.
        setting: the setting that selects another folder.

    Returns:
        Whether the folder existed before.

    Raises:
        StartupError: files cannot be written there; the text says why.
    """
    made: list[Path] = []
    try:
        _make(folder.absolute(), made)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(_PROBE)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise cannot_write(folder, error, what=what, setting=setting) from error
    finally:
        for parent in reversed(made):
            with suppress(OSError):
                parent.rmdir()
    return not made


def cannot_write(folder: Path, error: OSError, *, what: str, setting: str) -> StartupError:
    """The error for a folder in which files cannot be written."""
    at = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else folder
    reason = error.strerror or str(error)
    if isinstance(error, FileExistsError):
        reason = "a broken link is there" if at.is_symlink() else "a file is there"
    where = f" ({at})" if at != folder and folder.absolute().is_relative_to(at) else ""
    return StartupError(
        f"The {what} {folder} cannot be written: {reason}{where}. Make it writable, or choose another with {setting}."
    )


def file_exists(file: Path) -> bool:
    """Whether the file exists.

    Raises:
        StartupError: unknown, because a folder above it is not readable or its name is too long.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StartupError(f"The file {file} cannot be read: {error.strerror or error}.") from error
    return True


def require_writable_database(file: Path) -> None:
    """Checks that this user may read and write a SQLite file, if it exists. SQLite opens it for reading otherwise.

    Raises:
        StartupError: they may not.
    """
    if file_exists(file) and not os.access(file, os.R_OK | os.W_OK):
        raise StartupError(
            f"This user cannot read and write the database {file}. Change the file's owner or permissions."
        )


def _make(folder: Path, made: list[Path]) -> None:
    """As ``Path.mkdir(parents=True, exist_ok=True)``; ``made`` lists the new folders, outermost first."""
    try:
        folder.mkdir()
    except FileNotFoundError:
        if folder.parent == folder or folder.parent.is_dir():
            raise  # as in /proc
        _make(folder.parent, made)
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    made.append(folder)
