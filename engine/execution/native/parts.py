"""Compares a model's parts one by one, in float32, with what the C++ decoder computes for them.

The model runs once, with its linear layers and its attention stubbed out: each returns random numbers, which must
arrive where the decoder uses them, computed as the decoder computes them. So every layer is checked, at positions up
to the end of the context, and no weight is multiplied. Linear layers need no comparison:
:mod:`engine.execution.native.modules` accepts only PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import first_line
from engine.execution.native.constants import embedding_scale
from engine.execution.native.experts import Routing, routed, run_in_float32, small_outputs
from engine.execution.native.modules import DecoderModules, LayerModules, UnsupportedModel, norm_weight
from engine.execution.native.structure import Structure
from engine.model.attention_hook import LayerProbe
from engine.model.forwards import FAILURES, one_thread, replaced_forwards
from engine.model.position_check import shuffled

_MAX_ERROR = 1e-4
"""Most that a row may differ, as its largest difference relative to the row's RMS. Rounding makes a hundredth of it."""
_SIZES = (0.01, 1.0, 10.0)
"""Magnitudes of the random numbers: large ones reveal an activation that is clipped somewhere."""
_NORM_SIZES = (1e-3, 1.0, 1e3)
"""Magnitudes of rows for norms: the smallest reveal their epsilon."""
_NUM_LOGITS = 2
_SHIFT, _SHIFTS = 97, 9973  #: primes, so that no two layers get the same rows soon


@one_thread()
@torch.inference_mode()
def check_parts(model: Any, structure: Structure, positions: Tensor) -> None:
    """Runs a model and compares each part with the decoder's formula.

    Args:
        model: a causal language model of that structure, as transformers made it.
        positions: int64, spread over the context in ascending order.

    Raises:
        UnsupportedModel: a part computes something else; the message names it.
    """
    positions = positions[shuffled(len(positions))]
    tokens = positions * 7919 % structure.vocab_size
    rows = torch.arange(_NUM_LOGITS)
    check = _PartsProbe(DecoderModules.of(model), structure, tokens, positions)
    forwards = list(check.forwards())
    try:
        with replaced_forwards(forwards):
            output = model(
                input_ids=tokens.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=rows,
                paged=check,
            )
    except FAILURES as error:
        raise UnsupportedModel(f"its parts cannot be run one by one ({first_line(error)})") from error
    check.finish(output.logits, len(forwards) - 1)  # all but the embedding


class _PartsProbe(LayerProbe):
    """Follows one forward pass part by part, and holds what the decoder would have computed so far."""

    def __init__(self, modules: DecoderModules, structure: Structure, tokens: Tensor, positions: Tensor) -> None:
        super().__init__()
        self._modules = modules
        self._structure = structure
        self._positions = positions
        self._random = _RandomRows(len(tokens), structure)
        weight = modules.embedding.weight.detach()[tokens].float()
        self._stream = weight * structure.embedding_scale  #: residual, ``[num_tokens, hidden]``
        self._input = self._stream  #: of the next linear layers
        self._outputs: dict[str, Tensor] = {}  #: outputs of this layer's linear layers, by name
        self._attended = torch.empty(0)
        self._called: list[nn.Module] = []
        self._weights = {norm: norm_weight(norm) for norm in modules.norms}

    def forwards(self) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
        """Yields each module with the function that replaces its ``forward``."""
        embedding = self._modules.embedding
        yield embedding, self._embed(embedding)
        for index, (layer, constants) in enumerate(zip(self._modules.layers, self._structure.layers, strict=True)):
            where = f"of layer {index}"
            if layer.attention_norm is not None:
                yield layer.attention_norm, self._norm(layer.attention_norm, f"input_layernorm {where}")
            yield from self._linears(layer.qkv, ("query", "key", "value"), self._structure.qkv_sizes, where)
            for name, norm in (("query", layer.query_norm), ("key", layer.key_norm)):
                if norm is not None:
                    self._compare_norm(norm, f"{name} norm {where}")
            attention = (layer.attention_output_norm, f"attention output norm {where}", constants.attention_multiplier)
            yield layer.output, self._output(layer.output, where, *attention)
            if layer.attention_output_norm is not None:
                yield layer.attention_output_norm, self._output_norm(*attention)
            if layer.mlp_norm is not None:
                yield layer.mlp_norm, self._norm(layer.mlp_norm, f"mlp norm {where}")
            mlp = (layer.mlp_output_norm, f"mlp output norm {where}", constants.mlp_multiplier)
            if layer.down is not None:
                yield from self._linears(layer.gate_up, ("gate", "up"), (self._structure.intermediate,) * 2, where)
                yield layer.down, self._down(layer, where, *mlp)
            if constants.routing is not None:
                self._check_experts(layer.experts, where)
                yield layer.router, self._route(layer.router, where)
                yield layer.experts, self._experts(layer, constants.routing, where, *mlp)
            if layer.mlp_output_norm is not None:
                yield layer.mlp_output_norm, self._output_norm(*mlp)
        yield self._modules.norm, self._norm(self._modules.norm, "norm after the last layer")
        yield from self._linears((self._modules.lm_head,), ("lm_head",), (self._structure.vocab_size,), "")

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        sliding_window: int | None,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        modules, constants = self._modules.layers[layer], self._structure.layers[layer]
        where = f"of layer {layer}"
        for name, found, norm in (("query", query, modules.query_norm), ("key", key, modules.key_norm)):
            self._compare_rope(f"{name} {where}", found, self._take(name), norm, constants.rotary)
        _compare(f"value {where}", _by_token(value), self._take("value"))
        if scale != constants.attention_scale:
            raise _mismatch(f"attention scale {where}")
        if softcap != constants.softcap:
            raise _mismatch(f"soft cap of the attention scores {where}")
        if sinks is not modules.sinks:
            raise _mismatch(f"attention with sinks {where}")
        if sliding_window != self._structure.shapes[layer].sliding_window:
            raise _mismatch(f"sliding window {where}")
        self._attended = self._random.rows(self._structure.num_heads * self._structure.head_dim)
        return self._attended.view(1, len(self._positions), self._structure.num_heads, -1)

    def finish(self, logits: Tensor, modules: int) -> None:
        """Compares the logits, and checks that each of ``modules`` modules was called exactly once."""
        expected = self._take("lm_head") * self._structure.logits_scale
        if cap := self._structure.logits_softcap:
            expected = cap * torch.tanh(expected / cap)
        _compare("logits", logits[0], expected)
        if len(set(self._called)) != len(self._called) or len(self._called) != modules:
            raise _mismatch("order of its parts")

    def _take(self, name: str) -> Tensor:
        """Returns the output of a linear layer, which may be used only once."""
        if name not in self._outputs:
            raise _mismatch(f"order of its parts ({name})")
        return self._outputs.pop(name)

    def _embed(self, embedding: nn.Embedding) -> Callable[[Tensor], Tensor]:
        own, weight, scale = embedding.forward, embedding.weight.detach(), embedding_scale(embedding)

        def forward(tokens: Tensor) -> Tensor:
            """Computes in float32, with the scale as it is in the weight's dtype, so later modules do, too."""
            if not torch.equal(own(tokens), weight[tokens] * torch.tensor(scale, dtype=weight.dtype)):
                raise _mismatch("embedding")
            return weight[tokens].float() * scale

        return forward

    def _linears(
        self, linears: Sequence[nn.Linear], names: Sequence[str], sizes: Sequence[int], where: str
    ) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
        """Yields stubs for linear layers that read the same rows; one layer may have the outputs of all."""
        if len(linears) == len(names):
            for linear, name, size in zip(linears, names, sizes, strict=True):
                yield linear, self._linear(linear, (name,), (size,), where)
        else:
            yield linears[0], self._linear(linears[0], names, sizes, where)

    def _linear(
        self, linear: nn.Linear, names: Sequence[str], sizes: Sequence[int], where: str
    ) -> Callable[[Tensor], Tensor]:
        def forward(rows: Tensor) -> Tensor:
            self._called.append(linear)
            _compare(f"input of {' and '.join(names)} {where}".rstrip(), rows[0], self._input[: rows.shape[1]])
            for name, size in zip(names, sizes, strict=True):
                self._outputs[name] = self._random.rows(size, rows.shape[1])
            return torch.cat([self._outputs[name] for name in names], dim=1).unsqueeze(0)

        return forward

    def _output(self, linear: nn.Linear, where: str, *added: Any) -> Callable[[Tensor], Tensor]:
        def forward(rows: Tensor) -> Tensor:
            _compare(f"input of the attention's output {where}", rows[0], self._attended)
            return self._branch(linear, *added)

        return forward

    def _down(self, layer: LayerModules, where: str, *added: Any) -> Callable[[Tensor], Tensor]:
        activation = self._structure.activation

        def forward(rows: Tensor) -> Tensor:
            gate, up = self._take("gate"), self._take("up")
            words = f"activation {_name(layer.activation)} {where}"
            _compare(words, layer.activation(gate), activation(gate, torch.ones_like(gate)))
            _compare(f"input of down {where}", rows[0], activation(gate, up))
            return self._branch(layer.down, *added)

        return forward

    def _route(self, router: Any, where: str) -> Callable[[Tensor], Any]:
        def forward(rows: Tensor) -> Any:
            self._called.append(router)
            _compare(f"input of the router {where}", rows, self._input)
            return run_in_float32(router, rows)

        return forward

    def _experts(self, layer: LayerModules, routing: Routing, where: str, *added: Any) -> Callable[..., Tensor]:
        def forward(rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
            _compare(f"input of the experts {where}", rows, self._input)
            found = routed((rows, weights, chosen), routing.num_experts)
            _compare(f"choice of experts {where}", found, routing.weights(layer.router, self._input))
            return self._branch(layer.experts, *added).view(rows.shape)

        return forward

    def _check_experts(self, experts: Any, where: str) -> None:
        """Compares the code of experts on small weights; :mod:`parity_check` compares a model's own."""
        for size in _SIZES:
            _compare(f"computation of the experts {where}", *small_outputs(experts, self._structure.activation, size))

    def _branch(self, module: Any, norm: Any, _words: str, multiplier: float) -> Tensor:
        """Makes the output of attention or MLP, and adds it to the stream unless a norm follows."""
        self._called.append(module)
        self._outputs["branch"] = self._random.rows(self._structure.hidden)
        branch = self._outputs["branch"]
        if norm is None:
            self._add(self._take("branch"), multiplier)
        return branch.unsqueeze(0)

    def _output_norm(self, module: Any, words: str, multiplier: float) -> Callable[[Tensor], Tensor]:
        own = module.forward

        def forward(rows: Tensor) -> Tensor:
            self._called.append(module)
            branch = self._take("branch")
            _compare(f"input of {words}", rows[0], branch)
            self._compare_norm(module, words, own)
            normed = self._normalized(branch, module)
            self._add(normed, multiplier)
            return normed.unsqueeze(0)

        return forward

    def _add(self, rows: Tensor, multiplier: float) -> None:
        self._stream = self._input = self._stream + rows * multiplier

    def _norm(self, module: Any, words: str) -> Callable[[Tensor], Tensor]:
        own = module.forward
        first = module is self._modules.layers[0].attention_norm

        def forward(rows: Tensor) -> Tensor:
            self._called.append(module)
            _compare("embedding" if first else f"residual sum before {words}", rows[0], self._stream)
            self._compare_norm(module, words, own)
            self._input = self._normalized(rows[0], module)
            return self._input.unsqueeze(0)

        return forward

    def _compare_norm(self, module: Any, words: str, own: Callable[[Tensor], Tensor] | None = None) -> None:
        width = len(module.weight)
        for size in _NORM_SIZES:
            rows = size * self._random.rows(width, 1)
            _compare(words, (own or module.forward)(rows), self._normalized(rows, module))

    def _normalized(self, rows: Tensor, module: Any) -> Tensor:
        squares = rows.square().mean(-1, keepdim=True)
        normalized: Tensor = rows * torch.rsqrt(squares + self._structure.epsilon) * self._weights[module]
        return normalized

    def _compare_rope(self, words: str, found: Tensor, output: Tensor, norm: Any, rotary: int | None) -> None:
        if norm is not None:
            output = self._normalized(output.view(len(output), -1, len(norm.weight)), norm)
        heads = output.reshape(len(output), -1, self._structure.head_dim)
        if rotary is not None:
            heads = self._structure.rotary[rotary].rotate(heads, self._positions)
        errors = _errors(_by_token(found), heads.flatten(1))
        wrong = self._positions[~(errors <= _MAX_ERROR)]
        if len(wrong):
            raise _mismatch(f"{words} (its norm, rotary position or scale, first at position {int(wrong.min())})")


class _RandomRows:
    """Hands out random rows as slices of one long row: new random numbers each time would take seconds."""

    def __init__(self, num_tokens: int, structure: Structure) -> None:
        self._num_tokens = num_tokens
        widest = max(structure.hidden, structure.intermediate, structure.num_heads * structure.head_dim)
        length = max(num_tokens * widest, _NUM_LOGITS * structure.vocab_size)
        dice = torch.Generator().manual_seed(0)
        sizes = torch.tensor(_SIZES)[torch.randint(len(_SIZES), (length + _SHIFTS,), generator=dice)]
        self._numbers = torch.randn(length + _SHIFTS, generator=dice) * sizes
        self._shift = 0

    def rows(self, width: int, count: int | None = None) -> Tensor:
        """Returns float32 ``[count, width]``; by default a row for each token."""
        count = self._num_tokens if count is None else count
        self._shift = (self._shift + _SHIFT) % _SHIFTS
        return self._numbers[self._shift : self._shift + count * width].view(count, width)


def _by_token(heads: Tensor) -> Tensor:
    """``[1, heads, num_tokens, head_dim]`` as ``[num_tokens, heads * head_dim]``."""
    return heads[0].transpose(0, 1).flatten(1)


def _errors(found: Tensor, expected: Tensor) -> Tensor:
    """Returns each row's largest difference relative to the row's RMS, ``[n]``."""
    return (found - expected).abs().amax(-1) / expected.square().mean(-1).sqrt().clamp_min(1e-30)


def _compare(words: str, found: Tensor, expected: Tensor) -> None:
    if found.shape != expected.shape or not bool((_errors(found, expected) <= _MAX_ERROR).all()):  # NaN fails, too
        raise _mismatch(words)


def _mismatch(words: str) -> UnsupportedModel:
    return UnsupportedModel(f"{words} differs from what the C++ decoder computes")


def _name(activation: Any) -> str:
    return type(activation).__name__ if isinstance(activation, nn.Module) else str(activation)
