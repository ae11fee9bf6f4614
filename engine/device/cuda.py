"""What the CUDA card of this machine can do."""

from __future__ import annotations

import torch


def capability_below(device: torch.device, major: int) -> str | None:
    """A sentence's part when the card is older than the kernel asks."""
    found = torch.cuda.get_device_capability(device)
    return None if found[0] >= major else f"it needs compute capability {major}.0 (found {found[0]}.{found[1]})"
