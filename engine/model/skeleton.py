"""Builds a model's module without the weights of its linear layers: enough to see how the model computes.

The checks at load stub the linear layers out (:mod:`engine.model.forwards`), so they need only what is small: the
embedding, norms, and the buffers of the rotary embedding. Everything else stays on PyTorch's meta device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.errors import ModelLoadError
from engine.model.attention_hook import ATTENTION_NAME
from engine.model.gguf.dequantize import dequantize
from engine.model.named_tensors import NamedTensors
from engine.model.tensors import BlockTensor, TensorSource


def build_skeleton(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Returns a causal language model whose larger parameters are on the meta device, in eval mode."""
    with _EmptyOnMeta():
        made = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION_NAME)
    module: PreTrainedModel = made.eval().requires_grad_(False)
    return module


class _EmptyOnMeta(TorchFunctionMode):
    """Creates what layers allocate for their weights on the meta device, and computes buffers as usual."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return func(*args, **(kwargs | {"device": "meta"} if func is torch.empty else kwargs))


class ModelTensors(NamedTensors):
    """The tensors of a model's parameters, found in a checkpoint.

    A checkpoint may name them without the prefix of the model's body, and holds tied parameters once or twice. Other
    tensors of the checkpoint are ignored, as transformers ignores them.

    Args:
        source: the checkpoint's tensors.
        module: has the parameters, with data or without.
        name: of the model, for messages.

    Raises:
        ModelLoadError: tensors are missing, or have other shapes.
    """

    def __init__(self, source: TensorSource, module: PreTrainedModel, name: str) -> None:
        stored = set(source.names())
        prefix = f"{module.base_model_prefix}."
        parameters = dict(module.named_parameters(remove_duplicate=False))
        held = {
            parameter: found
            for parameter in parameters
            for found in (parameter.removeprefix(prefix), parameter)  # the last that is stored counts
            if found in stored
        }
        tied = _tied_names(module)
        stored_names = {
            parameter: held[other]
            for parameter in parameters
            for other in (*tied.get(parameter, ()), parameter)
            if other in held
        }
        missing = sorted(parameters.keys() - stored_names.keys())
        if missing:
            raise ModelLoadError(
                f"The weights of {name} are incomplete: {len(missing)} tensors are missing, {missing[0]} among them."
            )
        for parameter, found in stored_names.items():
            if tuple(source.shape(found)) != tuple(parameters[parameter].shape):
                raise ModelLoadError(
                    f"The weights of {name} cannot be loaded: the sizes of some tensors differ from config.json. "
                    "Download both files from the same source."
                )
        super().__init__(source, stored_names)

    def fill(self, module: PreTrainedModel, dtype: torch.dtype) -> None:
        """Gives a skeleton its embedding and all that is small: the weights of norms and routers, biases."""
        embedding = module.get_input_embeddings()
        for path, part in module.named_modules():
            for name, parameter in list(part.named_parameters(prefix=path, recurse=False)):
                is_small = parameter.ndim <= (1 if isinstance(part, nn.Linear | nn.Embedding) else 2)
                if is_small or part is embedding:
                    tensor = self.read(name)
                    numbers = dequantize(tensor, dtype) if isinstance(tensor, BlockTensor) else tensor.to(dtype)
                    filled = nn.Parameter(numbers, requires_grad=False)
                    setattr(part, name.rpartition(".")[2], filled)


def _tied_names(module: PreTrainedModel) -> dict[str, tuple[str, ...]]:
    """Returns the other names of each parameter that shares its data with others."""
    tied: dict[str, set[str]] = {}
    for target, origin in module.all_tied_weights_keys.items():
        tied.setdefault(target, set()).add(origin)
        tied.setdefault(origin, set()).add(target)
    return {name: tuple(sorted(others)) for name, others in tied.items()}
