"""The structure of models built like Llama: the modules and sizes that the C++ decoder expects.

A model with these modules may still compute something else with them, which :mod:`engine.execution.native.parts`
checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from engine.model.linears import is_plain
from engine.model.rope import LENGTH_DEPENDENT
from engine.scheduling.cache_layout import LayerShape

LANES = 16
"""Numbers in a SIMD vector, and outputs whose weights are interleaved."""

_PER_LAYER_ATTRIBUTES = ("layer_idx", "layer_type", "attention_type", "sliding_window", "is_sliding")


class UnsupportedModel(Exception):
    """The C++ decoder does not support a model; the message says why."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Sizes and constants of a model that consists of the expected modules."""

    shapes: tuple[LayerShape, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab_size: int
    inv_freq: Tensor  #: float32 ``[head_dim / 2]``
    rotary_scale: float
    attention_scale: float
    epsilon: float

    @classmethod
    def of(cls, model: Any, shapes: Sequence[LayerShape]) -> Structure:
        """Reads the structure of a causal language model.

        Raises:
            UnsupportedModel: the model has other modules than the expected ones, or sizes that the decoder does not
                support.
        """
        _expect_modules(model)
        body = model.model
        attention = body.layers[0].self_attn
        head_dim, num_kv_heads = shapes[0].head_dim, shapes[0].num_kv_heads
        expected = (num_kv_heads, head_dim, head_dim)
        if any((one.num_kv_heads, one.head_dim, one.value_head_dim) != expected for one in shapes):
            raise UnsupportedModel("its layers differ in their heads")
        rope_type = getattr(body.rotary_emb, "rope_type", None)
        if not isinstance(rope_type, str) or rope_type in LENGTH_DEPENDENT:
            raise UnsupportedModel("its rotary embedding differs between layers or depends on the sequence length")
        structure = cls(
            shapes=tuple(shapes),
            num_heads=attention.q_proj.out_features // head_dim,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            hidden=body.embed_tokens.embedding_dim,
            intermediate=body.layers[0].mlp.gate_proj.out_features,
            vocab_size=body.embed_tokens.num_embeddings,
            inv_freq=body.rotary_emb.inv_freq.detach().float().clone(),
            rotary_scale=float(body.rotary_emb.attention_scaling),
            attention_scale=float(getattr(attention, "scaling", head_dim**-0.5)),
            epsilon=getattr(body.norm, "variance_epsilon", math.nan),
        )
        structure._check_sizes(model)
        return structure

    def _check_sizes(self, model: Any) -> None:
        if any(width % LANES for width in (self.head_dim, self.hidden, self.intermediate)):
            raise UnsupportedModel(f"the width of its rows or heads is not a multiple of {LANES}")
        if len(self.inv_freq) * 2 != self.head_dim:
            raise UnsupportedModel("its rotary embedding applies to only a part of each head")
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        sizes = {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }
        for layer in model.model.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                self._check_norm(norm, self.hidden)
            for name in ("q_norm", "k_norm"):
                if hasattr(layer.self_attn, name):
                    self._check_norm(getattr(layer.self_attn, name), self.head_dim)
            for name, size in sizes.items():
                _check_linear(getattr(layer.mlp if hasattr(layer.mlp, name) else layer.self_attn, name), size)
        self._check_norm(model.model.norm, self.hidden)
        _check_linear(model.lm_head, (self.hidden, self.vocab_size))

    def _check_norm(self, module: Any, width: int) -> None:
        if getattr(module, "variance_epsilon", None) != self.epsilon or module.weight.shape != (width,):
            raise UnsupportedModel("its norms are of another kind, or differ from one another")


def _expect_modules(model: Any) -> None:
    _expect(model, {"model", "lm_head"})
    body = model.model
    _expect(body, {"embed_tokens", "layers", "norm", "rotary_emb"})
    for layer in body.layers:
        _expect(layer, {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
        _expect(layer.self_attn, {"q_proj", "k_proj", "v_proj", "o_proj"}, optional={"q_norm", "k_norm"})
        _expect(layer.mlp, {"gate_proj", "up_proj", "down_proj", "act_fn"})
    for name in ("self_attn", "mlp"):
        _expect_alike([getattr(layer, name) for layer in body.layers])


def _expect(module: Any, names: set[str], optional: set[str] | None = None) -> None:
    """Checks that a module has these parts, and no others."""
    parts = {name for name, _part in module.named_children()}
    if parts - (optional or set()) != names:
        raise UnsupportedModel(f"{type(module).__name__} has unexpected parts: {', '.join(sorted(parts))}")


def _expect_alike(modules: Sequence[Any]) -> None:
    """Checks that modules have equal settings in all layers, apart from those in a layer's shape."""

    def switches(module: Any) -> dict[str, object]:
        return {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and name not in _PER_LAYER_ATTRIBUTES
        }

    if any(switches(module) != switches(modules[0]) for module in modules):
        raise UnsupportedModel(f"the settings of its {type(modules[0]).__name__} modules differ between layers")


def _check_linear(linear: nn.Module, size: tuple[int, int]) -> None:
    if not is_plain(linear):
        raise UnsupportedModel("it uses something other than plain linear layers")
    if (linear.in_features, linear.out_features) != size:
        raise UnsupportedModel("its layers differ in their sizes")
