"""Fills a module of transformers with the dequantized tensors of a quantized checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.errors import ModelLoadError, first_line
from engine.model.attention_hook import ATTENTION_NAME
from engine.model.progress import Progress
from engine.model.quantized.source import DequantizedSource
from engine.model.weights import reported_loading, too_large

log = logging.getLogger(__name__)


def load_dequantized(
    config: Any, source: DequantizedSource, name: str, dtype: torch.dtype, device: torch.device, progress: Progress
) -> Any:
    """Returns the model with dense weights, as transformers makes it of an unquantized checkpoint.

    Tensors are dequantized one by one, when transformers asks for them: the module and one layer are in memory.

    Raises:
        ModelLoadError: the checkpoint contradicts its configuration or itself, or is incomplete or too large.
    """
    found: Any = AutoModelForCausalLM._model_mapping[type(config)]
    architecture = found[0] if isinstance(found, tuple) else found
    log.info(
        "%s is stored as %s: %d weights are dequantized while loading",
        name,
        source.format.label,
        len(source.quantized_names()),
    )
    dense = source.in_dtype(dtype)
    try:
        with reported_loading(progress):
            module, report = architecture.from_pretrained(
                None,
                config=config,
                state_dict={key: _Unread(dense, key) for key in dense.names()},
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                output_loading_info=True,
            )
    except torch.OutOfMemoryError as error:
        raise too_large(name, device) from error
    except (OSError, ValueError, RuntimeError, ImportError, AttributeError, SafetensorError) as error:
        reason = first_line(error)
        if "ignore_mismatched_sizes" in reason:  # transformers suggests an option that cannot be set here
            reason = "the sizes of some tensors differ from config.json. Download both files from the same source."
        raise ModelLoadError(f"The weights of {name} cannot be loaded: {reason}") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelLoadError(
            f"The weights of {name} are incomplete: {len(missing)} tensors are missing, {missing[0]} among them."
        )
    try:
        module.to(device).eval().requires_grad_(False)
    except torch.OutOfMemoryError as error:
        raise too_large(name, device) from error
    return module


@dataclass(frozen=True, slots=True)
class _Unread:
    """A tensor that transformers reads with ``[...]``, as it reads one of a safetensors file."""

    source: DequantizedSource
    name: str

    def __getitem__(self, _all: EllipsisType) -> Tensor:
        tensor = self.source.read(self.name)
        assert isinstance(tensor, Tensor), "all tensors of this source are dense"
        return tensor


def check_weights(config: Any, source: DequantizedSource) -> None:
    """Checks a quantized checkpoint against itself and the model, before any weight is dequantized.

    Raises:
        ModelLoadError: see :meth:`DequantizedSource.check`.
    """
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    source.check({name: tuple(parameter.shape) for name, parameter in module.named_parameters()})
