"""Makes a module of transformers from a :class:`~engine.model.tensors.TensorSource`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.errors import ModelLoadError, first_line
from engine.model.attention_hook import ATTENTION_NAME
from engine.model.checkpoint import Checkpoint
from engine.model.gguf.dequantize import dequantize
from engine.model.progress import Progress
from engine.model.tensors import BlockTensor
from engine.model.weights import reported_loading, too_large


def fill_module(checkpoint: Checkpoint, name: str, dtype: torch.dtype, device: torch.device, progress: Progress) -> Any:
    """Returns the model with its weights as numbers of ``dtype``, whatever format the checkpoint has them in.

    Raises:
        ModelLoadError: the weights are incomplete or too large.
    """
    tensors, config = checkpoint.tensors, checkpoint.config
    if tensors is None:
        raise ModelLoadError(f"The weights of {name} can only be loaded from a folder.")
    weights: dict[str, Tensor] = {}
    names = list(tensors.names())
    if not names:  # before a module takes the memory of a whole model
        raise ModelLoadError(f"The files of {name} hold no weights.")
    for index, key in enumerate(names):
        progress("Loading weights", index / len(names))
        weights[key] = _numbers(tensors.read(key), dtype)
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    try:
        with reported_loading(lambda _stage, _share: None):  # nothing is read any more
            module, report = kind.from_pretrained(
                None,
                config=config,
                state_dict=weights,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                output_loading_info=True,
            )
    except (ValueError, RuntimeError, AttributeError) as error:
        raise ModelLoadError(f"The weights of {name} cannot be loaded: {first_line(error)}") from error
    if report["missing_keys"] or report["unexpected_keys"]:
        differing = sorted({*report["missing_keys"], *report["unexpected_keys"]})
        raise ModelLoadError(
            f"The weights of {name} do not fit its configuration: {differing[0]} is one too few or many."
        )
    module.generation_config = checkpoint.generation_config
    try:
        module.to(device).eval().requires_grad_(False)
    except torch.OutOfMemoryError as error:
        raise too_large(name, device) from error
    return module


def _numbers(tensor: Tensor | BlockTensor, dtype: torch.dtype) -> Tensor:
    return dequantize(tensor, dtype) if isinstance(tensor, BlockTensor) else tensor.to(dtype, copy=True)
