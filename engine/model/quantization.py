"""Chooses the classes that replace a model's linear layers, by quantization and device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.device.triton_support import triton_unavailable_reason
from engine.errors import ModelLoadError
from engine.model.gpu_linears import GpuFp8Linear, GpuInt8Linear
from engine.model.linears import FusedLinear, Int4Linear, Int8Linear, PackedLinear, WidenedInt8Linear


@dataclass(frozen=True, slots=True)
class LinearClasses:
    """Candidates to replace a model's linear layers: the first class that fits a layer is used."""

    inner: tuple[type[FusedLinear], ...]
    output: tuple[type[FusedLinear], ...]  #: for the output layer, whose errors no later layer averages out


def choose_linears(quantization: str, device: torch.device, dtype: torch.dtype) -> LinearClasses:
    """Returns the replacement classes; empty where layers stay as they are.

    Raises:
        ModelLoadError: the quantization is not available here; the message says why.
    """
    if quantization == "none":
        whole = _in_bfloat16(device, dtype)
        return LinearClasses(whole, whole)
    if dtype is torch.float16:
        raise ModelLoadError(
            f"quantization={quantization} goes with dtype=bfloat16 or dtype=float32, not with float16."
        )
    return _on_gpu(quantization, device) if device.type == "cuda" else _on_processor(quantization, device, dtype)


def _on_processor(quantization: str, device: torch.device, dtype: torch.dtype) -> LinearClasses:
    if quantization == "fp8":
        raise ModelLoadError("quantization=fp8 runs on GPUs only. Use quantization=int8 or int4 on a processor.")
    has_products = torch.cpu._is_vnni_supported()
    if quantization == "int4":
        finer = (Int8Linear,) if has_products else _in_bfloat16(device, dtype)
        return LinearClasses((Int4Linear, *finer), finer)
    eight_bits = (Int8Linear if has_products else WidenedInt8Linear,)
    return LinearClasses(eight_bits, eight_bits)


def _on_gpu(quantization: str, device: torch.device) -> LinearClasses:
    if quantization == "int4":
        raise ModelLoadError("quantization=int4 runs on processors only. Use quantization=int8 or fp8 on a GPU.")
    reason = triton_unavailable_reason(device)
    if reason is not None:
        raise ModelLoadError(
            f"quantization={quantization} cannot run on this GPU: {reason}. Install what is missing, or use "
            "quantization=none."
        )
    if quantization == "int8":
        return LinearClasses((GpuInt8Linear,), (GpuInt8Linear,))
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        raise ModelLoadError(
            f"quantization=fp8 needs a GPU of compute capability 8.9 or later, and this one has {major}.{minor}. Use "
            "quantization=int8, which takes as little memory."
        )
    return LinearClasses((GpuFp8Linear,), ())


def _in_bfloat16(device: torch.device, dtype: torch.dtype) -> tuple[type[FusedLinear], ...]:
    native = device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (PackedLinear,) if native and dtype is torch.bfloat16 else ()
