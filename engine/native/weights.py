"""The weights of models built like Llama, in the order in which the decoder in C++ reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.attention.base import LayerShape
from engine.model.linears import INT4_GROUP, to_int4, to_int8
from engine.model.rope import LENGTH_DEPENDENT

LANES = 16
"""Outputs that lie beside one another; numbers that are taken at once."""
TILE_WORDS = 16
"""Words of 32 bits in a row of a tile; a row of weights or numbers takes whole ones."""

_CACHE_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.bfloat16,
    "int4": torch.bfloat16,
}
"""The number formats of products, and what keys, values and embeddings beside them are made of."""


_ALIGNMENT = 64  #: bytes, a cache line
_ROOM_FOR_FILLING_UP = 2**20
_OF_EACH_LAYER = ("layer_idx", "layer_type", "attention_type", "sliding_window", "is_sliding")


class Unfit(Exception):
    """A model is not of the known build; says where."""


class HugePages:
    """Memory for tensors behind one another, in large pages: in small ones, a processor waits for its page tables.

    Args:
        capacity: bytes; takes memory only where it is written.
    """

    def __init__(self, capacity: int) -> None:
        self._bytes = torch.from_numpy(np.empty(capacity, dtype=np.uint8))  # NumPy asks for pages of 2 MiB
        self._used = -self._bytes.data_ptr() % _ALIGNMENT

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor, contiguous."""
        end = self._used + tensor.nbytes
        copy = self._bytes[self._used : end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._used = end + -end % _ALIGNMENT
        return copy


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer, or several that read the same rows."""

    weight: Tensor  #: ``[outputs / 16, inputs / numbers in a word, 16, numbers in a word]``, of 4 bits two in a byte
    scales: (
        Tensor | None
    )  #: of 8-bit weights float32 ``[outputs]``, of 4 bits bfloat16 ``[outputs / 16, inputs / 32, 16]``
    sums: Tensor | None  #: of 8-bit weights: int32 ``[outputs]``
    bias: Tensor | None  #: float32 ``[outputs]``

    @classmethod
    def of(
        cls, linears: Sequence[nn.Linear], number_format: str, pages: HugePages, *, by_turns: bool = False
    ) -> Product:
        join = _by_turns if by_turns else torch.cat
        weight = join([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        if len(biases) not in (0, len(linears)):
            raise Unfit("only some of the layers that read the same rows have a bias")
        bias = _filled_up(join(biases).float()) if biases else None
        weight = _filled_up(weight)
        match number_format:
            case "int8":
                steps, scales = to_int8(weight)
                return cls(pages.keep(_in_words(steps)), scales, steps.sum(1, dtype=torch.int32), bias)
            case "int4":
                if weight.shape[1] % INT4_GROUP:
                    raise Unfit(f"its rows are no multiple of {INT4_GROUP} numbers wide, which share a scale")
                codes, scales = to_int4(weight)
                return cls(pages.keep(_in_halves(codes)), pages.keep(_in_groups(scales)), None, bias)
        return cls(pages.keep(_in_words(weight)), None, None, bias)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    mlp_norm: Tensor
    qkv: Product
    output: Product
    gate_up: Product  #: :data:`LANES` outputs of the one, as many of the other
    down: Product


class DecoderWeights:
    """What the decoder reads of a model, in memory of its own.

    Args:
        model: a causal language model, as transformers made it.
        shapes: of its layers.
        number_format: of the products: ``float32``, ``bfloat16``, ``int8``, or ``int4`` but for the output layer.

    Raises:
        Unfit: the model has other parts than the known ones.
    """

    def __init__(self, model: Any, shapes: Sequence[LayerShape], number_format: str) -> None:
        _expect(model, {"model", "lm_head"})
        body = model.model
        _expect(body, {"embed_tokens", "layers", "norm", "rotary_emb"})
        for layer in body.layers:
            _expect(layer, {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
            _expect(layer.self_attn, {"q_proj", "k_proj", "v_proj", "o_proj"}, optional={"q_norm", "k_norm"})
            _expect(layer.mlp, {"gate_proj", "up_proj", "down_proj", "act_fn"})
        for name in ("self_attn", "mlp"):
            _expect_alike([getattr(layer, name) for layer in body.layers])
        attention = body.layers[0].self_attn
        self.number_format = number_format
        # The output layer may be the embedding once more, and narrow rows are filled up to whole tiles.
        self._pages = HugePages(4 * sum(part.nbytes for part in model.parameters()) + _ROOM_FOR_FILLING_UP)
        self.shapes = tuple(shapes)
        self.head_dim = self.shapes[0].head_dim
        self.num_kv_heads = self.shapes[0].num_kv_heads
        expected = (self.num_kv_heads, self.head_dim, self.head_dim)
        if any((one.num_kv_heads, one.head_dim, one.value_head_dim) != expected for one in shapes):
            raise Unfit("its layers differ in their heads")
        self.num_heads = attention.q_proj.out_features // self.head_dim
        self.hidden = body.embed_tokens.embedding_dim
        self.intermediate = body.layers[0].mlp.gate_proj.out_features
        self.vocab_size = body.embed_tokens.num_embeddings
        if any(width % LANES for width in (self.head_dim, self.hidden, self.intermediate)):
            raise Unfit(f"its rows or heads are no multiple of {LANES} numbers wide")
        rope_type = getattr(body.rotary_emb, "rope_type", None)
        if not isinstance(rope_type, str) or rope_type in LENGTH_DEPENDENT:
            raise Unfit("its layers turn positions differently, or by the length of the text")
        self.frequencies = body.rotary_emb.inv_freq.detach().float().clone()
        if len(self.frequencies) * 2 != self.head_dim:
            raise Unfit("positions turn only a part of each head")
        self.rotary_scale = float(body.rotary_emb.attention_scaling)
        self.attention_scale = float(getattr(attention, "scaling", self.head_dim**-0.5))
        self.epsilon: float = getattr(body.norm, "variance_epsilon", math.nan)
        self.embedding = body.embed_tokens.weight.detach().clone()
        if self.embedding.dtype is not _CACHE_DTYPES.get(number_format):
            raise Unfit(f"there is no code for {number_format} beside {self.embedding.dtype}")
        self.norm = _norm(body.norm, self.epsilon, self.hidden)
        self.layers = tuple(self._layer(layer) for layer in body.layers)
        # Nothing behind the output layer evens its errors out.
        of_head = "int8" if number_format == "int4" else number_format
        self.head = self._product(self.hidden, self.vocab_size, model.lm_head, number_format=of_head)

    def _product(
        self, inputs: int, outputs: int, *linears: Any, number_format: str | None = None, by_turns: bool = False
    ) -> Product:
        if any(type(linear) is not nn.Linear for linear in linears):
            raise Unfit("it multiplies with something else than linear layers")
        if any(linear.in_features != inputs for linear in linears) or outputs != sum(
            linear.out_features for linear in linears
        ):
            raise Unfit("its layers differ in their sizes")
        return Product.of(linears, number_format or self.number_format, self._pages, by_turns=by_turns)

    def _layer(self, layer: Any) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return LayerWeights(
            attention_norm=_norm(layer.input_layernorm, self.epsilon, self.hidden),
            query_norm=None if query_norm is None else _norm(query_norm, self.epsilon, self.head_dim),
            key_norm=None if key_norm is None else _norm(key_norm, self.epsilon, self.head_dim),
            mlp_norm=_norm(layer.post_attention_layernorm, self.epsilon, self.hidden),
            qkv=self._product(self.hidden, queries + 2 * keys, attention.q_proj, attention.k_proj, attention.v_proj),
            output=self._product(queries, self.hidden, attention.o_proj),
            gate_up=self._product(self.hidden, 2 * self.intermediate, mlp.gate_proj, mlp.up_proj, by_turns=True),
            down=self._product(self.intermediate, self.hidden, mlp.down_proj),
        )


def _expect(module: Any, names: set[str], optional: set[str] | None = None) -> None:
    """A module has these parts, and no others."""
    parts = {name for name, _part in module.named_children()}
    if parts - (optional or set()) != names:
        raise Unfit(f"{type(module).__name__} consists of {', '.join(sorted(parts))}")


def _expect_alike(modules: Sequence[Any]) -> None:
    """Nothing is switched on in one layer and off in another, but what a layer's shape tells."""

    def switches(module: Any) -> dict[str, object]:
        return {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and name not in _OF_EACH_LAYER
        }

    if any(switches(module) != switches(modules[0]) for module in modules):
        raise Unfit(f"one {type(modules[0]).__name__} computes otherwise than another")


def _by_turns(parts: Sequence[Tensor]) -> Tensor:
    """``[n, ...]`` each, as ``[len(parts) * n, ...]``: the first :data:`LANES` of each, then the next."""
    return torch.stack([part.reshape(-1, LANES, *part.shape[1:]) for part in parts], 1).flatten(0, 2)


def _filled_up(rows: Tensor) -> Tensor:
    """With zeros, up to a multiple of :data:`LANES` rows."""
    return torch.cat([rows, rows.new_zeros(-len(rows) % LANES, *rows.shape[1:])])


def _in_words(weight: Tensor) -> Tensor:
    """``[outputs, inputs]`` in the order of ``Product.weight``, with zeros up to whole tiles of words."""
    numbers = 4 // weight.itemsize
    weight = nn.functional.pad(weight, (0, -weight.shape[1] % (TILE_WORDS * numbers)))
    return weight.view(len(weight) // LANES, LANES, -1, numbers).transpose(1, 2)


def _in_halves(codes: Tensor) -> Tensor:
    """int8 ``[outputs, inputs]`` from -8 to 7 as unsigned ``[outputs / 16, inputs / 32, 4, 16, 4]``, two in a byte.

    Of each group of 32 inputs the first half is in the lower bits, the other in the upper.
    """
    codes = nn.functional.pad(codes + 8, (0, -codes.shape[1] % (TILE_WORDS * 4))).to(torch.uint8)
    lower, upper = codes.view(len(codes) // LANES, LANES, -1, 2, 4, 4).unbind(3)
    return (lower | upper << 4).permute(0, 2, 3, 1, 4)


def _in_groups(scales: Tensor) -> Tensor:
    """``[outputs, groups]`` as bfloat16 ``[outputs / 16, groups, 16]``, with zeros up to whole tiles."""
    scales = nn.functional.pad(scales, (0, -scales.shape[1] % (TILE_WORDS * 4 // INT4_GROUP)))
    return scales.view(len(scales) // LANES, LANES, -1).transpose(1, 2).to(torch.bfloat16)


def _norm(module: Any, epsilon: float, width: int) -> Tensor:
    """An RMS norm's weight in float32."""
    if getattr(module, "variance_epsilon", None) != epsilon or module.weight.shape != (width,):
        raise Unfit("its norms are of another kind, or differ")
    weight: Tensor = module.weight.detach().float().clone()
    return weight
