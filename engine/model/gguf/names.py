"""Maps the parameters of transformers' models to the tensors of a GGUF file."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

import torch
from torch import nn

from engine.errors import ModelLoadError
from engine.model.gguf.architectures import architecture_of
from engine.model.gguf.model_file import GgufModel

_UNUSED = re.compile(r"(?:blk\.\d+\.)?rope_(?:freqs|factors_\w+)\.weight")
"""Tensors that are part of the configuration."""
_EXPERTS = re.compile(
    r"(?:.*\.)?layers\.(?P<layer>\d+)\.\w+\.experts\.(?P<part>gate_up_proj|down_proj)(?P<bias>_bias)?"
)


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """How a parameter is made of the file's tensors."""

    sources: tuple[str, ...]  #: several are concatenated along the outputs
    shape: tuple[int, ...]  #: the parameter's
    heads: int = 0
    """If not 0, the rows of each of so many heads alternate between the halves that the rotary embedding rotates."""
    is_minus_one: bool = False  #: the file has 1 added to it
    is_transposed: bool = False  #: inputs before outputs, and gate and up projections alternate


def plan_parameters(module: nn.Module, model: GgufModel) -> dict[str, ParameterPlan]:
    """Returns how each parameter of a model is read. Tied parameters have one entry.

    Args:
        module: made from the file's configuration; it may be on the meta device.

    Raises:
        ModelLoadError: the file lacks tensors, has others, or their shapes do not fit.
    """
    config = module.config.get_text_config()  # type: ignore[union-attr,operator]
    names = _Names(model, config.num_hidden_layers)
    is_permuted = architecture_of(model).is_permuted
    plans: dict[str, ParameterPlan] = {}
    missing: list[str] = []
    for name, parameter in module.named_parameters():
        sources = names.sources(name)
        if any(source not in model.tensors for source in sources) or not sources:
            missing.append(name)
            continue
        heads = 0
        if is_permuted and ".q_proj." in name:
            heads = config.num_attention_heads
        elif is_permuted and ".k_proj." in name:
            heads = config.num_key_value_heads
        owner = module.get_submodule(name.rpartition(".")[0])
        plans[name] = ParameterPlan(
            sources,
            tuple(parameter.shape),
            heads,
            is_minus_one=parameter.ndim == 1 and name.endswith(".weight") and _adds_one(owner),
            is_transposed=_EXPERTS.fullmatch(name) is not None and _is_transposed(owner),
        )
    _check(model, plans, missing)
    return plans


class _Names:
    def __init__(self, model: GgufModel, num_layers: int) -> None:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

        kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == model.architecture)
        self._map = get_tensor_name_map(kind, num_layers)
        self._tensors = model.tensors

    def sources(self, name: str) -> tuple[str, ...]:
        if experts := _EXPERTS.fullmatch(name):
            suffix = "bias" if experts["bias"] else "weight"
            prefix = f"blk.{experts['layer']}.ffn_"
            if experts["part"] == "down_proj":
                return (f"{prefix}down_exps.{suffix}",)
            fused = f"{prefix}gate_up_exps.{suffix}"
            return (fused,) if fused in self._tensors else (f"{prefix}gate_exps.{suffix}", f"{prefix}up_exps.{suffix}")
        suffixes = (".weight", ".bias")
        found = self._map.get_name(name, try_suffixes=suffixes)
        if found is None:  # transformers 5 renamed the router of Granite's mixtures
            found = self._map.get_name(name.replace(".router.", ".router.layer."), try_suffixes=suffixes)
        if found is None:
            return ()
        return (found if found.endswith((".weight", ".bias")) else f"{found}.weight",)


def _adds_one(norm: nn.Module) -> bool:
    """Whether a norm multiplies by its weight plus 1: llama.cpp's files hold what is multiplied by."""
    probe = copy.deepcopy(norm).to_empty(device="cpu").float()
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.zero_()
        width = next(probe.parameters()).shape[-1]
        return bool(probe(torch.arange(1.0, width + 1).reshape(1, 1, width)).any())


def _is_transposed(experts: nn.Module) -> bool:
    """Whether a mixture's matrices have inputs before outputs, told by the one whose two sizes differ."""
    gate_up, down = experts.get_parameter("gate_up_proj"), experts.get_parameter("down_proj")
    return gate_up.shape[-1] == 2 * down.shape[-2] and gate_up.shape[-2] == down.shape[-1]


def _check(model: GgufModel, plans: dict[str, ParameterPlan], missing: list[str]) -> None:
    if missing:
        raise ModelLoadError(
            f"{model.path} lacks {len(missing)} tensors that a {model.architecture} model has in transformers, "
            f"{missing[0]} among them."
        )
    used = {source for plan in plans.values() for source in plan.sources}
    others = sorted(name for name in model.tensors if name not in used and not _UNUSED.fullmatch(name))
    if others:
        raise ModelLoadError(
            f"{model.path} holds {len(others)} tensors that a {model.architecture} model does not have in "
            f"transformers, {others[0]} among them."
        )
    for name, plan in plans.items():
        shape = _shape_in_file(model, plan)
        if _essential(shape) != _essential(plan.shape):
            raise ModelLoadError(
                f"The tensor {plan.sources[0]} of {model.path} has the shape {shape}, and {name} needs {plan.shape}: "
                "the file's metadata does not fit its tensors."
            )


def _shape_in_file(model: GgufModel, plan: ParameterPlan) -> tuple[int, ...]:
    """Returns the shape that a parameter will have, from the file."""
    shapes = [model.tensors[source].shape for source in plan.sources]
    axis = -1 if plan.sources[0].endswith(".bias") or len(shapes[0]) == 1 else -2
    shape = list(shapes[0])
    shape[axis] = sum(each[axis] for each in shapes)
    if plan.is_transposed and len(shape) == 3:
        shape[1], shape[2] = shape[2], shape[1]
    return tuple(shape)


def _essential(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a shape without sizes of 1, which the two sides have in different places."""
    return tuple(size for size in shape if size != 1)
