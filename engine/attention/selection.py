"""Which kernel runs: the first of the known ones that the machine has and that can do what the model needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.attention.base import AttentionKernel
from engine.attention.sdpa import SdpaKernel
from engine.errors import ModelLoadError

KERNELS: Sequence[type[AttentionKernel]] = (SdpaKernel,)
"""All kernels, the fastest first."""


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a model asks of a kernel."""

    sliding_window: bool = False
    softcap: bool = False
    sinks: bool = False


def select_kernel(choice: str, needs: AttentionNeeds, device: torch.device, block_size: int) -> AttentionKernel:
    """The kernel to use: ``choice`` by name, or the first that can serve when it is ``"auto"``.

    Raises:
        ModelLoadError: the name is unknown, or no kernel can serve; the message says why for each.
    """
    names = [kernel.name for kernel in KERNELS]
    if choice != "auto" and choice not in names:
        raise ModelLoadError(f"attention={choice!r} is not known here; choose auto or one of: {', '.join(names)}.")
    reasons: list[str] = []
    for kernel in KERNELS:
        if choice not in ("auto", kernel.name):
            continue
        reason = _unfit_because(kernel, needs, device, block_size)
        if reason is None:
            return kernel()
        reasons.append(f"{kernel.name}: {reason}")
    raise ModelLoadError(f"No attention kernel can run this model here ({'; '.join(reasons)}).")


def _unfit_because(
    kernel: type[AttentionKernel], needs: AttentionNeeds, device: torch.device, block_size: int
) -> str | None:
    if needs.softcap and not kernel.supports_softcap:
        return "the model caps its attention scores (soft-capping), which this kernel cannot do"
    if needs.sinks and not kernel.supports_sinks:
        return "the model uses attention sinks, which this kernel cannot do"
    if needs.sliding_window and not kernel.supports_sliding_window:
        return "the model uses a sliding window, which this kernel cannot do"
    if block_size % kernel.page_multiple:
        return f"kv_block_size must be a multiple of {kernel.page_multiple} (got {block_size})"
    return kernel.unavailable_because(device)
