"""Chooses the device that a model runs on, and its number format."""

from __future__ import annotations

import torch

from engine.errors import ModelLoadError, first_line


def choose_device(choice: str) -> torch.device:
    if choice == "cpu":
        return torch.device("cpu")
    reason = _cuda_unavailable_reason()
    if reason is None:
        return torch.device("cuda")
    if choice == "cuda":
        raise ModelLoadError(f"device=cuda was asked for, but {reason}. Use device=cpu.")
    return torch.device("cpu")


def _cuda_unavailable_reason() -> str | None:
    """Returns why this PyTorch cannot compute on the first GPU; None if it can."""
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    built_for = [int(arch.removeprefix("sm_").rstrip("af")) for arch in torch.cuda.get_arch_list() if "sm_" in arch]
    if built_for and major * 10 + minor < min(built_for):
        return (
            f"the GPU's compute capability is {major}.{minor}, and this PyTorch needs {min(built_for) / 10:.1f} or more"
        )
    try:  # a driver that is too old for the libraries fails only here
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError as error:
        return f"a first computation on the GPU failed ({first_line(error)})"
    return None


def choose_dtype(choice: str, device: torch.device) -> torch.dtype:
    if choice != "auto":
        dtype: torch.dtype = getattr(torch, choice)
        return dtype
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32
