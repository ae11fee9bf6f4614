"""Quantizes the linear layers of a saved model in the layouts of published formats, and saves what they stand for.

Tests of whole models use these packers. Reading single weights is tested on what the published packers wrote, in
``tests/engine/model/quantized/checkpoints``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_BIAS = 127


@dataclass(frozen=True)
class Packed:
    """One weight as a format stores it, and the numbers that it stands for."""

    stored: dict[str, Tensor]  #: by the end of the tensor's name, from the layer's on, such as ``.qweight``
    dense: Tensor


Pack = Callable[[Tensor], Packed]


@dataclass(frozen=True)
class Packing:
    """A format with its settings."""

    pack: Pack
    config: dict[str, Any]  #: quantization_config
    only: str = ".weight"  #: the end of the names of tensors that are packed
    skip: tuple[str, ...] = field(default=("lm_head", "embed_tokens", "mlp.gate.", "norm"))


def save_quantized(model: Path, packing: Packing, quantized: Path, dense: Path) -> None:
    """Saves two copies of a model: quantized, and in float32 with the numbers that the quantized weights stand for."""
    stored, numbers = {}, {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if tensor.ndim < 2 or not name.endswith(packing.only) or any(part in name for part in packing.skip):
            stored[name] = numbers[name] = tensor
            continue
        packed = packing.pack(tensor)
        layer = name.removesuffix(packing.only)
        stored |= {f"{layer}{end}": part.contiguous() for end, part in packed.stored.items()}
        numbers[name] = packed.dense.float().contiguous()
    for folder, tensors in ((quantized, stored), (dense, numbers)):
        shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps(config | {"quantization_config": packing.config}))


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the quantization_config of a saved model."""
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Changes the tensors of a saved model."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def awq(group: int) -> Packing:
    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros, dense = _affine(weight, group, 4, symmetric=False)
        stored = {
            ".qweight": _pack_outputs(codes.t()),
            ".qzeros": _pack_outputs(zeros.t()),
            ".scales": scales.t().half(),
        }
        return Packed(stored, dense)

    return Packing(pack, {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"})


def gptq(bits: int, group: int, *, symmetric: bool = False, v2: bool = False, desc_act: bool = False) -> Packing:
    def pack(weight: Tensor) -> Packed:
        inputs = weight.shape[1]
        order = torch.arange(inputs)
        if desc_act:
            order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
        codes, scales, zeros, dense = _affine(weight[:, order], group, bits, symmetric=symmetric)
        back = torch.argsort(order)
        groups = (torch.arange(inputs) // (inputs if group == -1 else group))[back]
        stored = {
            ".qweight": pack_words(codes[:, back], bits).t(),
            ".qzeros": pack_words((zeros if v2 else zeros - 1).t(), bits),
            ".scales": scales.t().half(),
            ".g_idx": groups.int(),
        }
        return Packed(stored, dense[:, back])

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": desc_act}
    return Packing(pack, config | {"checkpoint_format": "gptq_v2" if v2 else "gptq"})


def compressed_tensors_packed(bits: int, group: int, *, symmetric: bool = True) -> Packing:
    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros, dense = _affine(weight, group, bits, symmetric=symmetric, dtype=torch.bfloat16)
        stored = {
            ".weight_packed": pack_words(codes, bits),
            ".weight_scale": scales.bfloat16(),
            ".weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            stored[".weight_zero_point"] = pack_words(zeros.t(), bits).t()
        return Packed(stored, dense)

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    weights |= {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    return Packing(pack, _compressed("pack-quantized", weights))


def compressed_tensors_int8() -> Packing:
    def pack(weight: Tensor) -> Packed:
        scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16().float()
        codes = (weight / scales).round().clamp(-128, 127)
        return Packed({".weight": codes.to(torch.int8), ".weight_scale": scales.bfloat16()}, codes * scales)

    return Packing(
        pack,
        _compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"})
        | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}},
    )


def compressed_tensors_float8(strategy: str) -> Packing:
    def pack(weight: Tensor) -> Packed:
        block = {"tensor": tuple(weight.shape), "channel": (1, weight.shape[1]), "block": (128, 128)}[strategy]
        codes, scales, dense = _float8(weight, block, torch.bfloat16)
        return Packed({".weight": codes, ".weight_scale": scales.flatten() if strategy == "tensor" else scales}, dense)

    weights: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": strategy}
    if strategy == "block":
        weights["block_structure"] = [128, 128]
    return Packing(pack, _compressed("float-quantized", weights))


def float8(block: tuple[int, int] = (128, 128)) -> Packing:
    def pack(weight: Tensor) -> Packed:
        codes, scales, dense = _float8(weight, block, torch.float32)
        return Packed({".weight": codes, ".weight_scale_inv": scales}, dense)

    return Packing(pack, {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(block)})


def mxfp4() -> Packing:
    def pack(weight: Tensor) -> Packed:
        blocks = weight.transpose(1, 2).unflatten(2, (-1, 32))  # [experts, outputs, blocks, 32]
        exponents = (blocks.abs().amax(3).log2().floor() - 2).clamp(-_EXPONENT_BIAS, _EXPONENT_BIAS)
        scaled = blocks / exponents.exp2().unsqueeze(3)
        values = torch.tensor(_FP4)
        codes = (scaled.abs().unsqueeze(4) - values).abs().argmin(4) + 8 * (scaled < 0)
        dense = torch.cat([values, -values])[codes] * exponents.exp2().unsqueeze(3)
        octets = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        scales = (exponents + _EXPONENT_BIAS).to(torch.uint8)
        return Packed({"_proj_blocks": octets, "_proj_scales": scales}, dense.flatten(2).transpose(1, 2))

    return Packing(pack, {"quant_method": "mxfp4"}, only="_proj", skip=())


def bitsandbytes_4bit(*, nested: bool = False) -> Packing:
    """NF4's own values do not matter here, since files hold them: these are evenly spaced."""
    values = torch.linspace(-1, 1, 16)
    outer_values = torch.linspace(-1, 1, 256)

    def pack(weight: Tensor) -> Packed:
        blocks = weight.reshape(-1, 64)
        absmax = blocks.abs().amax(1)
        codes = ((blocks / absmax.unsqueeze(1)).unsqueeze(2) - values).abs().argmin(2)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
        parts = {".weight.absmax": absmax, ".weight.quant_map": values.clone()}
        if nested:
            offset = float(absmax.mean())
            groups = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
            largest = groups.abs().amax(1)
            outer = ((groups / largest.unsqueeze(1)).unsqueeze(2) - outer_values).abs().argmin(2)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            parts |= {".weight.absmax": outer.flatten()[: len(absmax)].to(torch.uint8)}
            parts |= {".weight.nested_absmax": largest, ".weight.nested_quant_map": outer_values.clone()}
            absmax = (outer_values[outer] * largest.unsqueeze(1)).flatten()[: len(absmax)] + offset
        flat = codes.flatten()
        parts[".weight"] = (flat[0::2] << 4 | flat[1::2]).to(torch.uint8).unsqueeze(1)
        parts[".weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
            list(json.dumps(state).encode()), dtype=torch.uint8
        )
        return Packed(parts, (values[codes] * absmax.unsqueeze(1)).view(weight.shape))

    return Packing(pack, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"})


def bitsandbytes_8bit() -> Packing:
    def pack(weight: Tensor) -> Packed:
        largest = weight.abs().amax(1)
        codes = (weight * 127 / largest.unsqueeze(1)).round()
        stored = {
            ".weight": codes.to(torch.int8),
            ".SCB": largest,
            ".weight_format": torch.tensor(0, dtype=torch.uint8),
        }
        return Packed(stored, codes * largest.unsqueeze(1) * (1 / 127))

    return Packing(pack, {"quant_method": "bitsandbytes", "load_in_8bit": True})


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """Packs unsigned codes ``[n, m]`` into int32 ``[n, m * bits / 32]``, the first in the lowest bits."""
    each = 32 // bits
    codes = torch.nn.functional.pad(codes.long(), (0, -codes.shape[1] % each)) & (2**bits - 1)
    words = (codes.view(len(codes), -1, each) << torch.arange(0, 32, bits)).sum(2)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def _pack_outputs(codes: Tensor) -> Tensor:
    return pack_words(codes.reshape(len(codes), -1, 8)[:, :, _AWQ_ORDER].flatten(1), 4)


def _affine(
    weight: Tensor, group: int, bits: int, *, symmetric: bool, dtype: torch.dtype = torch.float16
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rounds to nearest; returns unsigned codes, scales, zero points (from 1 on) and what they stand for."""
    groups = weight.unflatten(1, (-1, weight.shape[1] if group == -1 else group))
    steps = 2**bits - 1
    if symmetric:
        scales = (groups.abs().amax(2) * 2 / steps).to(dtype).float()
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
        scales = ((high - low) / steps).to(dtype).float()
        zeros = (-low / scales).round().clamp(1, steps)
    codes = (groups / scales.unsqueeze(2) + zeros.unsqueeze(2)).round().clamp(0, steps)
    dense = (codes - zeros.unsqueeze(2)) * scales.unsqueeze(2)
    return codes.flatten(1), scales, zeros, dense.flatten(1)


def _float8(weight: Tensor, block: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes, the scales of blocks (those at the ends may be smaller), and what they stand for."""
    outputs, inputs = weight.shape
    rows, columns = torch.arange(outputs) // block[0], torch.arange(inputs) // block[1]
    scales = torch.zeros(int(rows[-1]) + 1, int(columns[-1]) + 1)
    for row in range(len(scales)):
        for column in range(scales.shape[1]):
            scales[row, column] = weight[rows == row][:, columns == column].abs().max() / 448
    scales = scales.to(dtype)
    each = scales.float()[rows][:, columns]
    codes = (weight / each).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, scales, codes.float() * each


def _compressed(layout: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }
