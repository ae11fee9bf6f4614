"""From the host to a GPU without waiting for what the GPU has to do before.

A copy from ordinary memory holds the caller up until the device has come to it. One from pinned memory is queued,
behind what is queued already, and the allocator keeps its source until it is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor on a device."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def overwrite(target: Tensor, source: Tensor) -> None:
    """Write a tensor on the host into one on a device, which what is queued before still finds as it was."""
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)
