"""Checks whether Triton kernels can be compiled and run here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch

from engine.device.cuda import capability_below


def triton_unavailable_reason(device: torch.device) -> str | None:
    """Returns why not, as part of a sentence; None on a GPU that can run them."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    # Triton 3.3 dropped tensor cores on older GPUs (github.com/triton-lang/triton/pull/5066).
    return capability_below(device, 8) or _no_compiler()


def _no_compiler() -> str | None:
    """Returns what Triton lacks to compile its C launcher against Python's headers (triton/runtime/build.py)."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler, such as the system's package gcc"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Triton needs Python's headers, such as the system's package python3-dev"
    return None
