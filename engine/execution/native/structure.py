"""The structure of a decoder that runs in C++: its sizes, and the constants of each layer.

Sizes are read from the modules, constants measured in a run over a few tokens
(:mod:`engine.execution.native.constants`). No architecture is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import first_line
from engine.execution.native.activations import Activation
from engine.execution.native.constants import LayerConstants, Rotary, measure
from engine.execution.native.experts import Routing, expert_linears
from engine.execution.native.modules import DecoderModules, DecoderNames, LayerModules, UnsupportedModel, epsilon
from engine.model.forwards import FAILURES
from engine.scheduling.cache_layout import LayerShape

LANES = 16
"""Numbers in a SIMD vector, and outputs whose weights are interleaved."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Sizes and constants of a model that consists of the expected modules."""

    names: DecoderNames
    shapes: tuple[LayerShape, ...]
    layers: tuple[LayerConstants, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int  #: width of the MLPs without experts; 0 if there are none
    vocab_size: int
    rotary: tuple[Rotary, ...]
    activation: Activation
    norms_all_heads: bool  #: whether the norms of queries and keys are over all heads together
    epsilon: float  #: of all norms
    embedding_scale: float
    logits_scale: float
    logits_softcap: float  #: of the scaled logits; 0 for none

    @classmethod
    def of(cls, model: Any, shapes: Sequence[LayerShape], max_length: int = 1) -> Structure:
        """Reads the structure of a causal language model.

        Args:
            shapes: of the cache, for each layer.
            max_length: of the sequences that will be computed, in tokens.

        Raises:
            UnsupportedModel: the model has other modules than the expected ones, or sizes that the decoder does not
                support.
        """
        try:
            return cls._of(model, shapes, max_length)
        except FAILURES as error:
            raise UnsupportedModel(f"its structure cannot be read ({first_line(error)})") from error

    @classmethod
    def _of(cls, model: Any, shapes: Sequence[LayerShape], max_length: int) -> Structure:
        modules = DecoderModules.of(model)
        head_dim, num_kv_heads = shapes[0].head_dim, shapes[0].num_kv_heads
        expected = (num_kv_heads, head_dim, head_dim)
        if any((one.num_kv_heads, one.head_dim, one.value_head_dim) != expected for one in shapes):
            raise UnsupportedModel("its layers differ in their heads")
        first = modules.layers[0]
        queries = first.output.in_features
        constants = measure(model, modules, max_length)
        structure = cls(
            names=modules.names(model),
            shapes=tuple(shapes),
            layers=constants.layers,
            num_heads=queries // head_dim,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            hidden=modules.embedding.embedding_dim,
            intermediate=next((layer.down.in_features for layer in modules.layers if layer.down is not None), 0),
            vocab_size=modules.embedding.num_embeddings,
            rotary=constants.rotary,
            activation=constants.activation,
            norms_all_heads=first.query_norm is not None and len(first.query_norm.weight) == queries != head_dim,
            epsilon=math.nan if (value := epsilon(modules.norm)) is None else value,
            embedding_scale=constants.embedding_scale,
            logits_scale=constants.logits_scale,
            logits_softcap=constants.logits_softcap,
        )
        structure._check_sizes(modules)
        return structure

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Numbers in all queries, keys and values of a token."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim

    def _check_sizes(self, modules: DecoderModules) -> None:
        if any(width % LANES for width in (self.head_dim, self.hidden, self.intermediate)):
            raise UnsupportedModel(f"the width of its rows or heads is not a multiple of {LANES}")
        if any(2 * len(rotary.inv_freq) > self.head_dim for rotary in self.rotary):
            raise UnsupportedModel("its rotary embedding is wider than a head")
        for layer, constants in zip(modules.layers, self.layers, strict=True):
            self._check_layer(layer, constants.routing)
        self._check_norm(modules.norm, self.hidden)
        _check_linears((modules.lm_head,), self.hidden, (self.vocab_size,))

    def _check_layer(self, layer: LayerModules, routing: Routing | None) -> None:
        queries, keys, _values = self.qkv_sizes
        for norm in layer.norms:
            self._check_norm(norm, self.hidden)
        for norm, width in ((layer.query_norm, queries), (layer.key_norm, keys)):
            if norm is not None:
                self._check_norm(norm, width if self.norms_all_heads else self.head_dim)
            elif self.norms_all_heads:
                raise UnsupportedModel("its layers differ in their norms")
        _check_linears(layer.qkv, self.hidden, self.qkv_sizes)
        _check_linears((layer.output,), queries, (self.hidden,))
        if layer.sinks is not None and layer.sinks.shape != (self.num_heads,):
            raise UnsupportedModel("its layers differ in their heads")
        if routing is None:
            _check_linears(layer.gate_up, self.hidden, (self.intermediate, self.intermediate))
            _check_linears((layer.down,), self.intermediate, (self.hidden,))
            return
        if routing.intermediate % LANES:
            raise UnsupportedModel(f"the width of its experts is not a multiple of {LANES}")
        expert = expert_linears(layer.experts, 0)
        _check_linears((expert.gate, expert.up), self.hidden, (routing.intermediate, routing.intermediate))
        _check_linears((expert.down,), routing.intermediate, (self.hidden,))

    def _check_norm(self, module: Any, width: int) -> None:
        if epsilon(module) != self.epsilon or module.weight.shape != (width,):
            raise UnsupportedModel("its norms are of another kind, or differ from one another")


def _check_linears(linears: Sequence[Any], inputs: int, outputs: Sequence[int]) -> None:
    """Checks the sizes of linear layers that read the same rows; one layer may have the outputs of all."""
    sizes = [(linear.in_features, linear.out_features) for linear in linears]
    expected = outputs if len(linears) == len(outputs) else (sum(outputs),)
    if sizes != [(inputs, size) for size in expected]:
        raise UnsupportedModel("its layers differ in their sizes")
