"""The documents in a folder: those that can be read, without hidden files and links that lead out of it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath

from app.domain.text import shown_name
from app.errors import InvalidInput, TooLarge
from app.knowledge.readers.kinds import SUFFIXES


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file as it was seen. As long as nothing of it changes, nor does its content."""

    path: Path  #: with links resolved
    size: int  #: in bytes
    modified_ns: int
    inode: int


def scan_folder(folder: Path) -> dict[str, FolderFile]:
    """The readable files in a folder and those below, by their paths from it, such as ``returns/eu.md``. Opens none.

    Links to other folders are not followed; a link to a file counts if the file is in the folder, too.

    Raises:
        InvalidInput: the folder or one below it is missing or cannot be read. What it holds is then unknown.
    """
    root = folder.resolve()

    def refuse(error: OSError) -> None:
        raise InvalidInput(f"The folder {error.filename} cannot be read: {error.strerror}.") from error

    found: dict[str, FolderFile] = {}
    for parent, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith((".", "~$")) or not has_readable_name(name):  # ~$: what an open Office file leaves
                continue
            path = Path(parent, name)
            file = _seen(path, root)
            if file is not None:
                found.setdefault(_name(path.relative_to(root)), file)
    return found


def has_readable_name(name: str) -> bool:
    return PurePath(name).suffix.lower() in SUFFIXES


def read_file(path: Path, name: str, max_bytes: int) -> bytes:
    """The content of a file.

    Raises:
        InvalidInput: it cannot be read, or is no file.
        TooLarge: it has more bytes.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe would wait for its other end
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidInput(f"{name} is no file.")
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror}.") from error
    if len(data) > max_bytes:
        raise TooLarge(f"{name} is larger than {max_bytes // 2**20} MiB. See APP_KNOWLEDGE_MAX_FILE_MB.")
    return data


def _seen(path: Path, root: Path) -> FolderFile | None:
    try:
        resolved = path.resolve(strict=True) if path.is_symlink() else path
        status = resolved.stat()
    except (OSError, RuntimeError):  # it is gone meanwhile, or a link leads nowhere or in a circle
        return None
    if not stat.S_ISREG(status.st_mode) or not resolved.is_relative_to(root):
        return None
    return FolderFile(resolved, status.st_size, status.st_mtime_ns, status.st_ino)


def _name(path: PurePath) -> str:
    return shown_name(os.fsencode(path.as_posix()).decode("utf-8", "replace"))
