"""Measures the constants of a model in a run over a few tokens: scales, soft caps, multipliers, rotary embeddings.

Linear layers and attention are stubbed out with random numbers, and what the model makes of them tells the constants,
wherever its code and its configuration keep them. Nothing is proven here: a model that computes something else gives
constants that :mod:`engine.execution.native.parts` then refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import first_line
from engine.execution.native.activations import Activation, recognise
from engine.execution.native.experts import Routing, gated, read_routing, run_in_float32
from engine.execution.native.modules import DecoderModules, LayerModules, UnsupportedModel, frequencies
from engine.model.attention_hook import LayerProbe
from engine.model.forwards import FAILURES, one_thread, replaced_forwards
from engine.model.rope import LENGTH_DEPENDENT, fixed_length

_POSITIONS = (1, 3, 77, 1003)  #: far enough apart that any two rotary embeddings differ
_SMALL, _LARGE = 1e-3, 1e8
"""Magnitudes of two rows of logits: a soft cap leaves the small one as it is, and the large one shows it."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """A rotary position embedding of the first ``2 * len(inv_freq)`` numbers of each head."""

    inv_freq: Tensor  #: float32, radians per position
    scale: float  #: of sines and cosines
    is_interleaved: bool  #: whether neighbours form a pair, instead of a number in each half

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotates float32 heads ``[num_tokens, num_heads, head_dim]``."""
        angles = positions.float().unsqueeze(1) * self.inv_freq
        cosines, sines = (turned.unsqueeze(1) * self.scale for turned in (angles.cos(), angles.sin()))
        width = 2 * len(self.inv_freq)
        numbers, rest = heads[..., :width], heads[..., width:]
        pairs = numbers.unflatten(-1, (-1, 2)).unbind(-1) if self.is_interleaved else numbers.chunk(2, dim=-1)
        first, second = pairs[0] * cosines - pairs[1] * sines, pairs[1] * cosines + pairs[0] * sines
        turned = (
            torch.stack([first, second], dim=-1).flatten(-2) if self.is_interleaved else torch.cat([first, second], -1)
        )
        return torch.cat([turned, rest], dim=-1)


@dataclass(frozen=True, slots=True)
class LayerConstants:
    """What differs between layers, apart from their weights."""

    rotary: int | None  #: index of the rotary embedding of queries and keys; None for none
    attention_scale: float
    softcap: float  #: of the scaled scores; 0 for none
    attention_multiplier: float  #: of the attention's output, when it is added to the residual stream
    mlp_multiplier: float
    routing: Routing | None  #: None for an MLP without experts


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of a whole model."""

    layers: tuple[LayerConstants, ...]
    rotary: tuple[Rotary, ...]
    activation: Activation
    embedding_scale: float
    logits_scale: float
    logits_softcap: float  #: of the scaled logits; 0 for none


@one_thread()
@torch.inference_mode()
def measure(model: Any, modules: DecoderModules, max_length: int) -> Constants:
    """Runs a model over a few tokens and returns its constants.

    Args:
        max_length: of the sequences that will be computed, in tokens.

    Raises:
        UnsupportedModel: the model cannot be run in this way, or its rotary embedding depends on the length.
    """
    tables, fixed = _rotary_tables(modules, max_length)
    positions = torch.tensor(_POSITIONS).clamp(max=fixed - 1)
    recorder = _Recorder(modules)
    try:
        with replaced_forwards(list(recorder.forwards())):
            output = model(
                input_ids=(positions * 7919 % modules.embedding.num_embeddings).unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=torch.arange(2),
                paged=recorder,
            )
        scale = embedding_scale(modules.embedding)
        streams = [recorder.stream(index) for index in range(len(modules.layers))]
        streams.append((recorder.inputs[modules.norm],) * 2)
        layers = tuple(
            _layer_constants(recorder, index, layer, streams, tables, positions)
            for index, layer in enumerate(modules.layers)
        )
        embedded = recorder.outputs[modules.embedding]
        logits_scale, logits_softcap = _logits_constants(recorder.outputs[modules.lm_head], output.logits[0])
    except FAILURES as error:
        raise UnsupportedModel(f"its parts cannot be run one by one ({first_line(error)})") from error
    used = sorted({layer.rotary for layer in layers if layer.rotary is not None})
    return Constants(
        layers=tuple(
            layer if layer.rotary is None else replace(layer, rotary=used.index(layer.rotary)) for layer in layers
        ),
        rotary=tuple(tables[index] for index in used),
        activation=_activation(modules.layers[0]),
        embedding_scale=scale * _ratio(streams[0][0], embedded),
        logits_scale=logits_scale,
        logits_softcap=logits_softcap,
    )


@dataclass(frozen=True, slots=True)
class _Attended:
    """An attention call: query ``[num_tokens, num_heads, head_dim]``."""

    query: Tensor
    scale: float
    softcap: float


class _Recorder(LayerProbe):
    """Records what reaches the modules of a model, and what leaves them, by module."""

    def __init__(self, modules: DecoderModules) -> None:
        super().__init__()
        self._modules = modules
        self._dice = torch.Generator().manual_seed(0)
        self.inputs: dict[nn.Module, Tensor] = {}
        self.outputs: dict[nn.Module, Tensor] = {}
        self.attended: list[_Attended] = []  #: in the order of the layers, which may be some of a model's

    def forwards(self) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
        """Yields each module with the function that replaces its ``forward``."""
        embedding, lm_head = self._modules.embedding, self._modules.lm_head
        embed = embedding.forward
        yield embedding, lambda tokens: self._record(embedding, tokens.unsqueeze(-1), embed(tokens).float())
        for layer in self._modules.layers:
            for norm in layer.norms:
                yield norm, self._own(norm)
            for linear in layer.linears:
                yield linear, self._stub(linear)
            if layer.experts is not None:
                yield layer.router, self._route(layer.router)
                yield layer.experts, self._experts(layer.experts)
        yield self._modules.norm, self._own(self._modules.norm)
        yield lm_head, self._logits

    def stream(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns the residual stream before the attention of a layer, and before its MLP."""
        modules = self._modules.layers[layer]
        first_of_mlp = modules.gate_up[0] if modules.experts is None else modules.router
        before = (modules.attention_norm or modules.qkv[0], modules.mlp_norm or first_of_mlp)
        return self.inputs[before[0]], self.inputs[before[1]]

    def attend(
        self,
        _layer: int,
        query: Tensor,
        _key: Tensor,
        value: Tensor,
        scale: float,
        _sliding_window: int | None,
        softcap: float,
        _sinks: Tensor | None,
    ) -> Tensor:
        self.attended.append(_Attended(query[0].transpose(0, 1), scale, softcap))
        return self._random(1, query.shape[2], query.shape[1], value.shape[-1])

    def _random(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self._dice)

    def _record(self, module: nn.Module, rows: Tensor, output: Tensor) -> Tensor:
        self.inputs[module], self.outputs[module] = (part.flatten(0, -2) for part in (rows, output))
        return output

    def _own(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        own = module.forward
        return lambda rows: self._record(module, rows, own(rows))

    def _stub(self, linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        return lambda rows: self._record(linear, rows, self._random(*rows.shape[:-1], linear.out_features))

    def _route(self, router: nn.Module) -> Callable[[Tensor], Any]:
        def forward(rows: Tensor) -> Any:
            self._record(router, rows, rows)
            return run_in_float32(router, rows)

        return forward

    def _experts(self, experts: nn.Module) -> Callable[..., Tensor]:
        return lambda rows, *_chosen: self._record(experts, rows, self._random(*rows.shape))

    def _logits(self, rows: Tensor) -> Tensor:
        size = torch.tensor([_SMALL, _LARGE]).view(1, 2, 1)
        lm_head = self._modules.lm_head
        return self._record(lm_head, rows, size * self._random(1, 2, lm_head.out_features))


def _layer_constants(
    recorder: _Recorder,
    index: int,
    layer: LayerModules,
    streams: list[tuple[Tensor, Tensor]],
    tables: tuple[Rotary, ...],
    positions: Tensor,
) -> LayerConstants:
    call = recorder.attended[index]
    before, between, after = *streams[index], streams[index + 1][0]
    return LayerConstants(
        rotary=_find_rotary(recorder, layer, call.query, tables, positions),
        attention_scale=call.scale,
        softcap=call.softcap,
        attention_multiplier=_ratio(between - before, recorder.outputs[layer.attention_output_norm or layer.output]),
        mlp_multiplier=_ratio(after - between, recorder.outputs[layer.mlp_output_norm or layer.down or layer.experts]),
        routing=None if layer.experts is None else read_routing(layer.router, layer.experts),
    )


def _find_rotary(
    recorder: _Recorder, layer: LayerModules, found: Tensor, tables: tuple[Rotary, ...], positions: Tensor
) -> int | None:
    """Returns which of the rotary embeddings the queries have, by the smallest difference."""
    num_tokens, num_heads, head_dim = found.shape
    rows = recorder.outputs[layer.qkv[0]][:, : num_heads * head_dim]
    if layer.query_norm is not None:
        rows = layer.query_norm(rows.reshape(num_tokens, -1, len(layer.query_norm.weight)))
    heads = rows.reshape(found.shape)
    candidates: dict[int | None, Tensor] = {None: heads}
    candidates |= {index: table.rotate(heads, positions) for index, table in enumerate(tables)}
    return min(candidates, key=lambda index: float((candidates[index] - found).norm()))


def _rotary_tables(modules: DecoderModules, max_length: int) -> tuple[tuple[Rotary, ...], int]:
    """Returns the rotary embeddings that layers may have, and the length up to which they are the same."""
    found, fixed = [], max(_POSITIONS) + 1
    for rotary in modules.rotary:
        tables = list(frequencies(rotary))
        if any(kind in LENGTH_DEPENDENT for _, _, kind in tables):
            fixed = min(fixed, limit := fixed_length(rotary))
            if max_length > limit:
                raise UnsupportedModel(
                    f"its rotary embedding depends on the sequence length (not with max_model_len={limit})"
                )
        found += tables
    candidates = (
        Rotary(inv_freq.detach().float().clone(), scale, is_interleaved)
        for inv_freq, scale, _ in found
        for is_interleaved in (False, True)
    )
    return tuple(candidates), fixed


def embedding_scale(embedding: nn.Embedding) -> float:
    """Returns what an embedding multiplies its weight by, in the weight's dtype."""
    ones = copy.copy(embedding)
    ones._parameters = {"weight": nn.Parameter(torch.ones_like(embedding.weight[:1], device="cpu"))}
    ones.padding_idx = None
    return float(type(ones).forward(ones, torch.zeros(1, dtype=torch.int64)).float().mean())


def _activation(layer: LayerModules) -> Activation:
    return recognise((lambda gate, up: layer.activation(gate) * up) if layer.experts is None else gated(layer.experts))


def _logits_constants(rows: Tensor, found: Tensor) -> tuple[float, float]:
    """Returns the scale of the logits and their soft cap, from a small and a large row."""
    scale = _ratio(found[0], rows[0])
    highest = float(found[1].abs().max())
    return scale, highest if highest < 0.5 * scale * float(rows[1].abs().max()) else 0.0


def _ratio(found: Tensor, rows: Tensor) -> float:
    """Returns the number by which rows were multiplied, rounded to six digits where that is as good.

    Constants in configurations have few digits, and a product by 1 should change no bit.
    """
    found, rows = found.double().flatten(), rows.double().flatten()
    ratio = float(found @ rows / (rows @ rows))
    rounded = float(f"{ratio:.6g}")
    return rounded if abs(rounded - ratio) < 3e-7 * abs(ratio) else ratio
