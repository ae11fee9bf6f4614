"""Marks the model that a server has loaded, so that no other process removes its files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from app.models.folders import hub_cache
from engine import EngineError, find_model


class ModelClaim:
    """Holds a shared lock on a file of the loaded model. The system releases it when the process ends."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def hold(self, target: str | None) -> None:
        """Marks this model instead of the one before. Does nothing for a model whose files cannot be found."""
        self.release()
        file = None if target is None else _file_of(target)
        if file is None:
            return
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # a file system without locks
            os.close(descriptor)
            return
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_in_use(target: str) -> bool:
    """Whether a server has this model loaded."""
    file = _file_of(target)
    if file is None:
        return False
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _file_of(target: str) -> Path | None:
    """Returns the file that carries the lock: the model's own, the config of its folder, or its branch in the cache."""
    path = Path(target).expanduser()
    if path.is_file():
        return path
    try:
        found = find_model(target)
    except EngineError:
        return None
    if isinstance(found, Path):
        return found if found.is_file() else found / "config.json"
    # Of the hub's cache a whole repository is removed, with all its quantizations.
    return hub_cache() / f"models--{found.partition(':')[0].replace('/', '--')}" / "refs" / "main"
