"""Quantized checkpoints (AWQ, GPTQ, compressed-tensors, FP8, MXFP4, bitsandbytes) read as dense tensors."""

from __future__ import annotations

from engine.model.quantized.formats import read_format
from engine.model.quantized.source import DequantizedSource, InvalidQuantization, QuantizedFormat

__all__ = ["DequantizedSource", "InvalidQuantization", "QuantizedFormat", "read_format"]
