"""Finds out by trying whether files can be written in a folder: permissions do not tell of a full or read-only disk."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from app.errors import StartupError

_PROBE = bytes(64 * 1024)


def try_folder(folder: Path, *, what: str, setting: str) -> bool:
    """Writes and removes a file in ``folder``, which is made for that where it is missing and then removed again.

    Args:
        what: the folder's role, such as ``data folder``.
        setting: names another one.

    Returns:
        Whether the folder was there before.

    Raises:
        StartupError: files cannot be written there; says why.
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
    """The sentence about a folder in which files cannot be written."""
    at = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else folder
    reason = error.strerror or str(error)
    if isinstance(error, FileExistsError):
        reason = "a link that leads nowhere is there" if at.is_symlink() else "a file is there"
    where = f" ({at})" if at != folder and folder.absolute().is_relative_to(at) else ""
    return StartupError(
        f"The {what} {folder} cannot be written: {reason}{where}. Make it writable, or name another one with {setting}."
    )


def file_exists(file: Path) -> bool:
    """Raises:
    StartupError: that cannot be found out, because a folder above it may not be read or its name is too long.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StartupError(f"The file {file} cannot be read: {error.strerror or error}.") from error
    return True


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
