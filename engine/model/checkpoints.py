"""Checks a model folder before anything is loaded from it."""

from __future__ import annotations

import errno
from pathlib import Path

from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError, first_line


def mode_of(path: Path) -> int:
    """Returns a path's ``st_mode``; 0 if it does not exist. Unlike ``is_dir``, raises if access is denied.

    Raises:
        OSError: the path cannot be examined.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        if error.errno == errno.ELOOP:
            return 0
        raise


def refuse_unreadable_weights(file: Path) -> None:
    """Checks that a weight file's header can be read.

    Raises:
        ModelLoadError: it cannot.
    """
    try:
        with safe_open(file, framework="np"):  # reads the header alone; "pt" would import PyTorch
            pass
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"The weights of {file.parent} cannot be read: {file.name}: {first_line(error)}."
        ) from error
