"""Writes ``checkpoints/``: matrices quantized by published packers, with what the same packages dequantize them to.

Run it where the packages are installed (no GPU is needed), with Deskmate's own requirements:

    pip install --no-deps compressed-tensors==0.20.0 bitsandbytes==0.50.2 auto-round==0.16.1 gptqmodel==7.7.0
    python -m tests.engine.model.quantized.published_packers

gptqmodel is imported from its source distribution; its compiled kernels are not used. It also imports pypcre,
tokenicer, logbar, device-smi, defuser, torchao, accelerate, threadpoolctl, datasets and requests.

Each file holds ``layer.*`` as the package stores them, ``expected``, and its quantization_config as metadata.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

OUTPUTS = 8
FOLDER = Path(__file__).parent / "checkpoints"
Case = tuple[str, dict[str, Tensor], Tensor, dict[str, Any]]
"""The file's name, the stored tensors, the dense weight, and the quantization_config."""


def inputs_for(group: int | None) -> int:
    """Returns a small number of inputs with more than one group, as far as they are of limited size."""
    return 256 if group == 128 else 128


def linear(seed: int, inputs: int, outputs: int = OUTPUTS) -> nn.Linear:
    torch.manual_seed(seed)
    made = nn.Linear(inputs, outputs, bias=False)
    made.weight = nn.Parameter(torch.randn(outputs, inputs) * 0.1 + 0.02 * torch.randn(outputs, 1), requires_grad=False)
    return made


def ranges(weight: Tensor, group: int, bits: int, *, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Returns scales and zero points, ``[outputs, groups]``, by rounding to nearest."""
    groups = weight.view(len(weight), -1, weight.shape[1] if group == -1 else group)
    steps = 2**bits - 1
    if symmetric:
        scales = groups.abs().amax(2) * 2 / steps
        return scales.half().float(), torch.full_like(scales, 2.0 ** (bits - 1))
    low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
    scales = ((high - low) / steps).half().float()
    return scales, (-low / scales).round().clamp(0, steps)


def awq() -> Iterator[Case]:
    from auto_round.export.export_to_awq.utils import WQLinear_GEMM, dequantize_gemm

    for seed, group in enumerate((32, 64, 128, -1)):
        inputs = inputs_for(group)
        layer, size = linear(seed, inputs), inputs if group == -1 else group
        scales, zeros = ranges(layer.weight, group, 4, symmetric=False)
        packed = WQLinear_GEMM.from_linear(layer, 4, size, scales=scales.t().contiguous(), zeros=zeros.t().contiguous())
        stored = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales")}
        expected = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, size).t()
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
        yield f"awq-{group}", stored, expected, config | {"modules_to_not_convert": None}


def gptq() -> Iterator[Case]:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    cases = [
        (4, 32, True, "gptq", False),
        (4, 64, False, "gptq", False),
        (4, 128, False, "gptq_v2", False),
        (4, -1, True, "gptq", False),
        (4, 64, False, "gptq_v2", True),
        (4, 32, True, "gptq", True),
        (8, 128, True, "gptq", False),
        (8, -1, False, "gptq_v2", True),
    ]
    for seed, (bits, group, symmetric, layout, desc_act) in enumerate(cases):
        inputs = inputs_for(group)
        layer, size = linear(100 + seed, inputs), inputs if group == -1 else group
        order = torch.arange(inputs) // size
        if desc_act:
            order = order[torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))]
        by_group = layer.weight[:, torch.argsort(order, stable=True)]
        scales, zeros = ranges(by_group, group, bits, symmetric=symmetric)
        if not symmetric and layout == "gptq":
            zeros = zeros.clamp_min(1)
        packed = TorchLinear(bits, group, symmetric, desc_act, inputs, OUTPUTS, bias=False)
        packed.pack_original(layer, scales, zeros, order.int())
        packed.post_init()
        expected = packed.dequantize_weight().t()
        settings = QuantizeConfig(bits=bits, group_size=group, sym=symmetric, desc_act=desc_act, format=layout)
        if layout == "gptq":
            convert_gptq_v2_to_v1_format_module(packed, settings)
        stored = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
        config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": desc_act}
        name = f"gptq-{bits}-{group}-{'sym' if symmetric else 'asym'}-{layout}{'-order' if desc_act else ''}"
        yield name, stored, expected, config | {"checkpoint_format": layout}


def gptq_by_auto_round() -> Iterator[Case]:
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

    layer, group = linear(150, 128, outputs=32), 64
    scales, zeros = ranges(layer.weight, group, 4, symmetric=False)
    zeros = zeros.clamp_min(1)
    packed = QuantLinear(4, group, 128, 32, bias=False)
    packed.pack(layer, scales, zeros)
    stored = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales")}
    expected = packed(torch.eye(128, dtype=torch.float16)).t()
    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": False, "desc_act": False}
    yield "gptq-4-64-asym-auto-round", stored, expected, config


def compressed_tensors() -> Iterator[Case]:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    activations = QuantizationArgs(num_bits=8, strategy="token", dynamic=True)
    float_activations = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)
    cases: list[tuple[str, str, dict[str, Any], QuantizationArgs | None]] = [
        ("w4a16-32", "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}, None),
        (
            "w4a16-128-asym",
            "pack-quantized",
            {"num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": False},
            None,
        ),
        ("w4a16-channel", "pack-quantized", {"num_bits": 4, "strategy": "channel"}, None),
        ("w8a16-channel", "pack-quantized", {"num_bits": 8, "strategy": "channel"}, None),
        ("w8a8-channel", "int-quantized", {"num_bits": 8, "strategy": "channel"}, activations),
        ("w8a8-channel-asym", "int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}, activations),
        ("w8a8-tensor", "int-quantized", {"num_bits": 8, "strategy": "tensor"}, activations),
        ("fp8-tensor", "float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}, float_activations),
        ("fp8-channel", "float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, float_activations),
        (
            "fp8-block",
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [4, 128]},
            float_activations,
        ),
    ]
    for seed, (name, layout, fields, activations_fields) in enumerate(cases):
        arguments = QuantizationArgs(**fields)
        scheme = QuantizationScheme(targets=["Linear"], weights=arguments, input_activations=activations_fields)
        # With 8 outputs, compressed-tensors 0.20.0 cannot unpack its zero points: they are one word high.
        outputs = OUTPUTS if arguments.symmetric else 2 * OUTPUTS
        inputs = inputs_for(128 if arguments.strategy == "block" else arguments.group_size)
        weight = linear(200 + seed, inputs, outputs).weight.to(torch.bfloat16)
        axes: tuple[int, ...]
        match arguments.strategy:
            case "group":
                parts, axes = weight.view(outputs, -1, arguments.group_size), (2,)
            case "block":
                parts, axes = weight.view(outputs // 4, 4, inputs // 128, 128), (1, 3)
            case "channel":
                parts, axes = weight.view(outputs, 1, inputs), (2,)
            case _:
                parts, axes = weight.view(1, -1), (1,)
        scale, zero = calculate_qparams(parts.amin(axes), parts.amax(axes), arguments)
        compressor = BaseCompressor.get_value_from_registry(layout)
        stored = compressor.compress(
            {"weight": weight, "weight_scale": scale.to(torch.bfloat16), "weight_zero_point": zero}, scheme
        )
        expected = compressor.decompress(stored, scheme)["weight"]
        config = QuantizationConfig(config_groups={"group_0": scheme}, format=layout, ignore=["lm_head"]).to_dict()
        yield f"compressed-tensors-{name}", stored, expected, json.loads(json.dumps(config, default=str))


def float8() -> Iterator[Case]:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
    from transformers.utils.quantization_config import FineGrainedFP8Config

    quantizer = FineGrainedFP8HfQuantizer(FineGrainedFP8Config(weight_block_size=(4, 128)))
    made = Fp8Quantize(quantizer).convert({"layer.weight": linear(300, 256).weight})
    weight, scale = made["layer.weight"], made["layer.weight_scale_inv"]
    expected = Fp8Dequantize(quantizer)._dequantize_one(weight, scale, torch.bfloat16)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [4, 128]}
    yield "fp8-block", {"weight": weight, "weight_scale_inv": scale}, expected, config


def mxfp4() -> Iterator[Case]:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(400)
    blocks = torch.randint(0, 256, (2, OUTPUTS, 4, 16), dtype=torch.uint8)
    scales = torch.randint(110, 130, (2, OUTPUTS, 4), dtype=torch.uint8)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    stored = {"gate_up_proj_blocks": blocks, "gate_up_proj_scales": scales}
    yield "mxfp4", stored, expected, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def bitsandbytes() -> Iterator[Case]:
    import bitsandbytes as bnb
    from bitsandbytes import functional

    for seed, (kind, nested) in enumerate((("nf4", False), ("nf4", True), ("fp4", False))):
        weight = linear(500 + seed, 128).weight.to(torch.bfloat16)
        packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
        expected = functional.dequantize_4bit(packed, state)
        stored = {"weight": packed} | {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
        config = {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": kind,
            "bnb_4bit_use_double_quant": nested,
        }
        yield f"bitsandbytes-{kind}{'-nested' if nested else ''}", stored, expected, config
    weight = linear(510, 128).weight.half()
    codes, scales, _ = functional.int8_vectorwise_quant(weight)
    expected = torch.ops.bitsandbytes.int8_vectorwise_dequant.default(codes, scales)
    layer_state = bnb.nn.Linear8bitLt(1, 1).state_dict()  # names of what it stores
    assert all(name.split(".")[0] in ("weight", "bias", "SCB", "weight_format") for name in layer_state)
    config = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True, "llm_int8_threshold": 6.0}
    stored = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    yield "bitsandbytes-int8", stored, expected, config


PACKERS: tuple[Callable[[], Iterator[Case]], ...] = (
    awq,
    gptq,
    gptq_by_auto_round,
    compressed_tensors,
    float8,
    mxfp4,
    bitsandbytes,
)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for packer in PACKERS:
        for name, stored, expected, config in packer():
            tensors = {f"layer.{part}": tensor.contiguous().clone() for part, tensor in stored.items()}
            tensors["expected"] = expected.contiguous().clone()
            save_file(tensors, FOLDER / f"{name}.safetensors", {"quantization_config": json.dumps(config)})
            print(f"{name}: {sum(tensor.nbytes for tensor in tensors.values()):,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
