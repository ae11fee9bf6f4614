"""Compute capability of the CUDA device."""

from __future__ import annotations

import torch


def capability_below(device: torch.device, major: int) -> str | None:
    """Returns part of a sentence if the GPU's compute capability is below ``major``.0; else None."""
    found = torch.cuda.get_device_capability(device)
    return None if found[0] >= major else f"it needs compute capability {major}.0 (found {found[0]}.{found[1]})"
