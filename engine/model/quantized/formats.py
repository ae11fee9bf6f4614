"""Reads a config's ``quantization_config``, or says in a sentence why such weights cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.errors import ModelLoadError
from engine.model.quantized.awq import AwqFormat
from engine.model.quantized.bitsandbytes import Bitsandbytes4BitFormat, Bitsandbytes8BitFormat
from engine.model.quantized.compressed_tensors import FORMATS, PACKED, CompressedTensorsFormat, Scheme
from engine.model.quantized.float8 import Float8Format
from engine.model.quantized.gptq import GptqFormat
from engine.model.quantized.mxfp4 import Mxfp4Format
from engine.model.quantized.source import QuantizedFormat

log = logging.getLogger(__name__)

Fields = Mapping[str, Any]


class _Unsupported(ValueError):
    """A quantization_config that this version does not support; the message completes a sentence."""


def read_format(fields: object, model: str) -> QuantizedFormat:
    """Returns the format that a ``quantization_config`` describes.

    Raises:
        ModelLoadError: the format is unknown or unsupported, or the fields are not valid; the message names it.
    """
    if not isinstance(fields, Mapping):
        raise ModelLoadError(f"The quantization_config of {model} is not valid: it is no JSON object.")
    method = str(fields.get("quant_method") or _implied_method(fields))
    read = _READERS.get(method)
    try:
        if read is None:
            raise _Unsupported(f"quantized with {method or 'an unnamed method'}")
        found = read(fields)
    except _Unsupported as error:
        raise ModelLoadError(
            f"{model} is {error}, which Deskmate does not read. It reads AWQ, GPTQ, compressed-tensors, FP8, MXFP4 and "
            "bitsandbytes; choose such a variant of the model, or its unquantized weights."
        ) from error
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if fields.get(key):
            log.info("%s of %s is ignored: the cache keeps the model's data type", key, model)
    return found


def _implied_method(fields: Fields) -> str:
    """Returns the method of older configs, which do not name it."""
    return "bitsandbytes" if fields.get("load_in_4bit") or fields.get("load_in_8bit") else ""


def _read_awq(fields: Fields) -> QuantizedFormat:
    version = str(fields.get("version") or fields.get("checkpoint_format") or "gemm").lower()
    if version != "gemm":
        raise _Unsupported(f"quantized with AWQ in the layout {version}")
    bits = _integer(fields, "bits", "w_bit", default=4)
    if bits != 4:
        raise _Unsupported(f"quantized with AWQ in {bits} bits")
    return AwqFormat(_group_size(fields, "group_size", "q_group_size"))


def _read_gptq(fields: Fields) -> QuantizedFormat:
    layout = str(fields.get("checkpoint_format") or fields.get("format") or "gptq").lower()
    if layout not in ("gptq", "gptq_v2") or fields.get("is_marlin_format"):
        raise _Unsupported(
            f"quantized with GPTQ in the layout {'marlin' if fields.get('is_marlin_format') else layout}"
        )
    bits = _integer(fields, "bits", default=4)
    if bits not in (4, 8):
        raise _Unsupported(f"quantized with GPTQ in {bits} bits")
    packed_in = str(fields.get("pack_dtype") or "int32").removeprefix("torch.")
    if packed_in != "int32":
        raise _Unsupported(f"quantized with GPTQ, packed in {packed_in}")
    overrides = fields.get("dynamic") or {}
    if isinstance(overrides, Mapping):
        changed = [pattern for pattern, values in overrides.items() if not pattern.startswith("-:") and values]
        if changed:
            raise _Unsupported(f"quantized with GPTQ with other settings for some layers (dynamic: {changed[0]})")
    return GptqFormat(bits, _group_size(fields, "group_size"), is_v2=layout == "gptq_v2")


def _read_float8(fields: Fields) -> QuantizedFormat:
    kind = str(fields.get("fmt") or "e4m3").lower()
    if kind not in ("e4m3", "float8_e4m3fn", "e5m2"):
        raise _Unsupported(f"quantized with FP8 of the kind {kind}")
    block = fields.get("weight_block_size")
    return Float8Format(None if block is None else _block(block, "weight_block_size"))


def _read_mxfp4(_fields: Fields) -> QuantizedFormat:
    return Mxfp4Format()


def _read_bitsandbytes(fields: Fields) -> QuantizedFormat:
    if fields.get("load_in_8bit"):
        return Bitsandbytes8BitFormat()
    if fields.get("load_in_4bit"):
        return Bitsandbytes4BitFormat()
    raise _Unsupported("quantized with bitsandbytes in neither 4 nor 8 bits")


def _read_compressed_tensors(fields: Fields) -> QuantizedFormat:
    sparsity = fields.get("sparsity_config")
    kind = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    if kind not in (None, "dense"):
        raise _Unsupported(f"compressed with compressed-tensors in the sparse format {kind}")
    transforms = fields.get("transform_config")
    if isinstance(transforms, Mapping) and transforms.get("config_groups"):
        raise _Unsupported("quantized with compressed-tensors after a transform of its weights (transform_config)")
    groups = fields.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _Unsupported("quantized with compressed-tensors without config_groups")
    schemes = [_scheme(group, fields) for group in groups.values()]
    return CompressedTensorsFormat(tuple(scheme for scheme in schemes if scheme is not None))


def _scheme(group: object, fields: Fields) -> Scheme | None:
    """Returns the scheme of an entry of ``config_groups``; None if it leaves weights as they are."""
    if not isinstance(group, Mapping) or not isinstance(group.get("targets"), list):
        raise _Unsupported("quantized with compressed-tensors, with an entry of config_groups that has no targets")
    weights = group.get("weights")
    if weights is None:
        return None
    layout = str(group.get("format") or fields.get("format") or "")
    if layout not in FORMATS:
        raise _Unsupported(f"compressed with compressed-tensors in the format {layout or 'that is not named'}")
    if not isinstance(weights, Mapping):
        raise _Unsupported("quantized with compressed-tensors, with weights that are no JSON object")
    bits = _integer(weights, "num_bits", default=8)
    is_float = str(weights.get("type", "int")).lower() == "float"
    if bits not in ((8,) if is_float else (4, 8)) or (layout != PACKED and bits != 8):
        raise _Unsupported(f"compressed with compressed-tensors as {layout} of {bits} bits")
    group_size = weights.get("group_size")
    strategy = str(weights.get("strategy") or _implied_strategy(group_size)).lower()
    if strategy == "group" and group_size == -1:
        strategy = "channel"
    if strategy not in ("tensor", "channel", "group", "block") or (strategy == "block" and not is_float):
        raise _Unsupported(f"compressed with compressed-tensors with the strategy {strategy}")
    return Scheme(
        targets=tuple(str(target) for target in group["targets"]),
        format=layout,
        bits=bits,
        is_float=is_float,
        is_symmetric=bool(weights.get("symmetric", True)),
        strategy=strategy,
        group_size=_group_size(weights, "group_size") if strategy == "group" else -1,
        block=_block(weights.get("block_structure"), "block_structure") if strategy == "block" else (1, 1),
    )


def _implied_strategy(group_size: object) -> str:
    return "tensor" if group_size is None else "channel" if group_size == -1 else "group"


def _integer(fields: Fields, *names: str, default: int) -> int:
    for name in names:
        if fields.get(name) is not None:
            value = fields[name]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            raise _Unsupported(f"quantized with {name}={value}")
    return default


def _group_size(fields: Fields, *names: str) -> int:
    size = _integer(fields, *names, default=128)
    if size != -1 and size < 1:
        raise _Unsupported(f"quantized with {names[0]}={size}")
    return size


def _block(value: object, name: str) -> tuple[int, int]:
    if isinstance(value, str):  # compressed-tensors once wrote 128x128
        value = [int(part) if part.isdigit() else part for part in value.split("x")]
    match value:
        case [int(outputs), int(inputs)] if outputs > 0 and inputs > 0:
            return outputs, inputs
    raise _Unsupported(f"quantized with {name}={value}")


_READERS: Final[Mapping[str, Callable[[Fields], QuantizedFormat]]] = {
    "awq": _read_awq,
    "gptq": _read_gptq,
    "compressed-tensors": _read_compressed_tensors,
    "fp8": _read_float8,
    "mxfp4": _read_mxfp4,
    "bitsandbytes": _read_bitsandbytes,
}
