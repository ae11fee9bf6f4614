"""``deskmate --version``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from app import __version__

ROOT = Path(__file__).parents[2]


def describe_version(root: Path = ROOT) -> str:
    """The version, and in a clone of the repository the commit: ``0.1.0 (commit 6ac695f)``."""
    commit = _commit(root)
    return f"{__version__} (commit {commit})" if commit else __version__


def _commit(root: Path) -> str | None:
    """The short hash of the commit in ``root``, with ``-dirty`` if tracked files differ from it; None if unknown."""
    # git would look in the folders above, which may be another project's. Unlike Path.exists, this does not raise
    # where access is denied.
    if not os.path.exists(root / ".git"):
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, or a folder of another user, which git refuses
        return None
    return done.stdout.strip() or None
