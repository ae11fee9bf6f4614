"""Finds the modules of a decoder by the part that they play in it, whatever the model is called.

The layouts listed here are those of models in transformers. A model with these modules may still compute something else
with them, which :mod:`engine.execution.native.parts` checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.linears import is_plain

IDENTITIES = (nn.Dropout, nn.Identity)
"""Modules that change nothing when a model generates."""


class UnsupportedModel(Exception):
    """The C++ decoder does not support a model; the message says why."""


NORMS = (
    *("attention_norm", "query_norm", "key_norm"),
    *("attention_output_norm", "mlp_norm", "mlp_output_norm"),
)
"""The norms of a layer, as :class:`LayerModules` names them."""


@dataclass(frozen=True, slots=True)
class NormName:
    """Where the weight of an RMS norm is found."""

    name: str  #: of the module
    adds_one: bool  #: whether rows are multiplied by one more than the weight, as in Gemma


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """How the weights of an expert lie in the parameters of all experts."""

    is_transposed: bool  #: ``[inputs, outputs]`` instead of ``[outputs, inputs]``
    is_concatenated: bool  #: the outputs of gate come before those of up, instead of in turn

    @classmethod
    def of(cls, experts: Any) -> ExpertLayout:
        return cls(getattr(experts, "is_transposed", False), getattr(experts, "is_concatenated", True))

    def matrix(self, weight: Tensor) -> Tensor:
        """Returns the weight of one expert's linear layer as ``[outputs, inputs]``."""
        return weight.T if self.is_transposed else weight

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what belongs to gate and to up; the outputs are the first dimension."""
        if self.is_concatenated:
            first, second = outputs.chunk(2)
            return first, second
        return outputs[::2], outputs[1::2]


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Where the weights of experts are found."""

    name: str  #: of the module that holds them
    layout: ExpertLayout


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The names of a layer's modules and of its sinks; see :class:`LayerModules`."""

    attention_norm: NormName | None
    query_norm: NormName | None
    key_norm: NormName | None
    attention_output_norm: NormName | None
    mlp_norm: NormName | None
    mlp_output_norm: NormName | None
    qkv: tuple[str, ...]
    sinks: str | None
    output: str
    gate_up: tuple[str, ...]
    down: str | None
    router: str | None
    experts: ExpertNames | None


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """The names of a model's modules; see :class:`DecoderModules`."""

    embedding: str
    layers: tuple[LayerNames, ...]
    norm: NormName
    lm_head: str


@dataclass(frozen=True, slots=True)
class LayerModules:
    """The modules of one decoder layer; None for a norm that the layer does not have."""

    attention_norm: Any
    qkv: tuple[nn.Linear, ...]  #: query, key and value; or one layer with the outputs of all three, in this order
    query_norm: Any
    key_norm: Any
    sinks: Tensor | None  #: a score for each query head, which takes part in the softmax without a value
    output: nn.Linear
    attention_output_norm: Any  #: of the attention's output, before it is added to the residual stream
    mlp_norm: Any
    gate_up: tuple[nn.Linear, ...]  #: gate and up; or one layer with the outputs of both, in this order; or experts
    activation: Any
    down: nn.Linear | None
    mlp_output_norm: Any
    router: Any  #: chooses the experts that a token's MLP consists of; None if all tokens have the same MLP
    experts: Any

    @property
    def norms(self) -> tuple[Any, ...]:
        """The norms over rows of the residual stream's width."""
        found = (self.attention_norm, self.attention_output_norm, self.mlp_norm, self.mlp_output_norm)
        return tuple(norm for norm in found if norm is not None)

    @property
    def linears(self) -> tuple[nn.Linear, ...]:
        return (*self.qkv, self.output, *self.gate_up, *(() if self.down is None else (self.down,)))


@dataclass(frozen=True, slots=True)
class DecoderModules:
    """The modules of a causal language model."""

    embedding: nn.Embedding
    layers: tuple[LayerModules, ...]
    norm: Any
    lm_head: nn.Linear
    rotary: tuple[nn.Module, ...]  #: those that hold frequencies

    @classmethod
    def of(cls, model: Any) -> DecoderModules:
        """Finds the modules of a model.

        Raises:
            UnsupportedModel: the model has other modules than the expected ones.
        """
        _expect(model, {"model", "lm_head"})
        body = model.model
        _expect(body, {"embed_tokens", "layers", "norm", "rotary_emb"})
        modules = cls(
            embedding=body.embed_tokens,
            layers=tuple(_layer(layer) for layer in body.layers),
            norm=body.norm,
            lm_head=model.lm_head,
            rotary=tuple(part for part in body.rotary_emb.modules() if any(True for _ in frequencies(part))),
        )
        if not all(is_plain(linear) for linear in modules.linears):
            raise UnsupportedModel("it uses something other than plain linear layers")
        if any(getattr(norm, "weight", None) is None or norm.weight.ndim != 1 for norm in modules.norms):
            raise UnsupportedModel("its norms are of another kind, or differ from one another")
        return modules

    def names(self, model: nn.Module) -> DecoderNames:
        """Returns the modules' names in ``model``."""
        name_of = {module: name for name, module in model.named_modules()}
        parameter_of: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}

        def norm(module: Any) -> NormName:
            return NormName(name_of[module], adds_one=_adds_one(module))

        def experts(module: Any) -> ExpertNames:
            return ExpertNames(name_of[module], ExpertLayout.of(module))

        layers = (
            LayerNames(
                **{name: None if (found := getattr(layer, name)) is None else norm(found) for name in NORMS},
                qkv=tuple(name_of[linear] for linear in layer.qkv),
                sinks=None if layer.sinks is None else parameter_of[layer.sinks],
                output=name_of[layer.output],
                gate_up=tuple(name_of[linear] for linear in layer.gate_up),
                down=None if layer.down is None else name_of[layer.down],
                router=None if layer.router is None else name_of[layer.router],
                experts=(
                    None
                    if layer.experts is None
                    else ExpertNames(name_of[layer.experts], ExpertLayout.of(layer.experts))
                ),
            )
            for layer in self.layers
        )
        return DecoderNames(name_of[self.embedding], tuple(layers), norm(self.norm), name_of[self.lm_head])

    @property
    def norms(self) -> tuple[Any, ...]:
        """All norms, those of queries and keys included."""
        heads = (norm for layer in self.layers for norm in (layer.query_norm, layer.key_norm) if norm is not None)
        return (*(norm for layer in self.layers for norm in layer.norms), *heads, self.norm)

    @property
    def linears(self) -> tuple[nn.Linear, ...]:
        return (*(linear for layer in self.layers for linear in layer.linears), self.lm_head)


def frequencies(rotary: nn.Module) -> Iterator[tuple[Tensor, float, str]]:
    """Yields the tables of a rotary embedding: the frequencies, the scale of sines and cosines, and the kind."""
    kinds = getattr(rotary, "rope_type", "default")
    for name, buffer in rotary.named_buffers(recurse=False):
        if not name.endswith("inv_freq") or name.endswith("original_inv_freq"):
            continue
        layers = name.removesuffix("inv_freq")
        kind = kinds.get(layers.removesuffix("_"), "default") if isinstance(kinds, dict) else kinds
        yield buffer, float(getattr(rotary, f"{layers}attention_scaling", 1.0)), str(kind)


_NORMS: Mapping[frozenset[str], tuple[str | None, str | None, str | None, str | None]] = {
    frozenset(name for name in names if name is not None): names
    for names in (
        ("input_layernorm", None, "post_attention_layernorm", None),
        ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
        ("input_layernorm", None, "pre_feedforward_layernorm", None),
        (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    )
}
"""Names of a layer's norms: of the input and the output of attention, then of the input and the output of the MLP."""


def _layer(layer: Any) -> LayerModules:
    names = frozenset(_parts(layer)) - {"self_attn", "mlp", "block_sparse_moe"}
    attention = getattr(layer, "self_attn", None)
    mlp = getattr(layer, "mlp", getattr(layer, "block_sparse_moe", None))
    if names not in _NORMS or attention is None or mlp is None:
        raise _unexpected(layer)
    attention_norm, attention_output_norm, mlp_norm, mlp_output_norm = (
        None if name is None else getattr(layer, name) for name in _NORMS[names]
    )
    _expect(
        attention,
        {"qkv_proj", "o_proj"} if hasattr(attention, "qkv_proj") else {"q_proj", "k_proj", "v_proj", "o_proj"},
        optional={"q_norm", "k_norm"},
    )
    return LayerModules(
        attention_norm=attention_norm,
        qkv=(
            (attention.qkv_proj,)
            if hasattr(attention, "qkv_proj")
            else (attention.q_proj, attention.k_proj, attention.v_proj)
        ),
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
        sinks=getattr(attention, "sinks", None),
        output=attention.o_proj,
        attention_output_norm=attention_output_norm,
        mlp_norm=mlp_norm,
        mlp_output_norm=mlp_output_norm,
        **_mlp(mlp),
    )


def _mlp(mlp: Any) -> dict[str, Any]:
    """Returns the fields of :class:`LayerModules` for an MLP, or for a mixture of experts."""
    if hasattr(mlp, "experts"):
        router = "router" if hasattr(mlp, "router") else "gate"
        _expect(mlp, {router, "experts"})
        parts: dict[str, Any] = {"router": getattr(mlp, router), "experts": mlp.experts}
        return {"gate_up": (), "activation": None, "down": None, **parts}
    is_fused = hasattr(mlp, "gate_up_proj")
    activation = "activation_fn" if hasattr(mlp, "activation_fn") else "act_fn"
    _expect(mlp, {*({"gate_up_proj"} if is_fused else {"gate_proj", "up_proj"}), "down_proj", activation})
    return {
        "gate_up": (mlp.gate_up_proj,) if is_fused else (mlp.gate_proj, mlp.up_proj),
        "activation": getattr(mlp, activation),
        "down": mlp.down_proj,
        "router": None,
        "experts": None,
    }


def epsilon(norm: Any) -> float | None:
    """Returns the epsilon of an RMS norm; None if it has none."""
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def norm_weight(norm: Any) -> Tensor:
    """Returns what an RMS norm multiplies its normalized rows by, float32: its weight, or one more (as in Gemma)."""
    weight: Tensor = norm.weight.detach().float()
    return weight + 1 if _adds_one(norm) else weight.clone()


def _adds_one(norm: Any) -> bool:
    weight: Tensor = norm.weight.detach().float()
    ones = torch.ones(1, len(weight), device=weight.device)
    return bool((norm(ones)[0] - weight).mean() > 0.5)


def _parts(module: nn.Module) -> list[str]:
    return [name for name, part in module.named_children() if not isinstance(part, IDENTITIES)]


def _expect(module: nn.Module, names: set[str], optional: set[str] | None = None) -> None:
    """Checks that a module has these parts, and no others."""
    if set(_parts(module)) - (optional or set()) != names:
        raise _unexpected(module)


def _unexpected(module: nn.Module) -> UnsupportedModel:
    return UnsupportedModel(f"{type(module).__name__} has unexpected parts: {', '.join(sorted(_parts(module)))}")
