"""Recognises a hub id, and refuses everything that could be a path."""

from __future__ import annotations

import re
from pathlib import Path

from engine import PROJECT_ROOT

EXAMPLE = "Qwen/Qwen3-0.6B"
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"(?P<repository>{_PART}/{_PART})(?::(?P<quantization>[A-Za-z0-9_.-]{{1,64}}))?")


def is_hub_id(name: str) -> bool:
    """Whether ``name`` is a hub id such as Qwen/Qwen3-0.6B or org/repo:Q4_K_M, and names no file or folder here.

    The engine prefers a folder to a hub id of the same name.
    """
    match = _HUB_ID.fullmatch(name)
    if match is None or ".." in name or "--" in name:
        return False
    return not any((root / name).exists() or (root / match["repository"]).exists() for root in (Path(), PROJECT_ROOT))
