"""Compares a model's parts one by one, in float32, with what the C++ decoder computes for them.

The model runs once, with its linear layers and its attention stubbed out: each returns random numbers, which must
arrive where the decoder uses them, computed as the decoder computes them. So every layer is checked, at positions up
to the end of the context, and no weight is multiplied. Linear layers need no comparison:
:mod:`engine.execution.native.structure` accepts only PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.errors import first_line
from engine.execution.native.structure import Structure, UnsupportedModel
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
    check = _PartsProbe(model, structure, tokens, positions)
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

    def __init__(self, model: Any, structure: Structure, tokens: Tensor, positions: Tensor) -> None:
        super().__init__()
        self._body = model.model
        self._head = model.lm_head
        self._structure = structure
        self._positions = positions
        angles = positions.float().unsqueeze(1) * structure.inv_freq
        self._cosines, self._sines = angles.cos() * structure.rotary_scale, angles.sin() * structure.rotary_scale
        self._random = _RandomRows(len(tokens), structure)
        self._stream = self._body.embed_tokens.weight.detach()[tokens].float()  #: residual, ``[num_tokens, hidden]``
        self._normed = torch.empty(0)
        self._outputs: dict[str, Tensor] = {}  #: outputs of this layer's linear layers, by name
        self._attended = torch.empty(0)
        self._called: list[nn.Module] = []

    def forwards(self) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
        """Yields each module with the function that replaces its ``forward``."""
        embed = self._body.embed_tokens.forward
        yield self._body.embed_tokens, lambda tokens: embed(tokens).float()  # so later modules compute in float32, too
        for index, layer in enumerate(self._body.layers):
            attention, mlp, where = layer.self_attn, layer.mlp, f"of layer {index}"
            yield layer.input_layernorm, self._norm(layer.input_layernorm, f"input_layernorm {where}")
            for name in ("q_proj", "k_proj", "v_proj"):
                yield getattr(attention, name), self._linear(getattr(attention, name), name, where)
            for name in ("q_norm", "k_norm"):
                if hasattr(attention, name):
                    self._compare_norm(getattr(attention, name), f"{name} {where}")
            yield attention.o_proj, self._output(attention.o_proj, where)
            yield layer.post_attention_layernorm, self._norm(layer.post_attention_layernorm, f"mlp norm {where}")
            for name in ("gate_proj", "up_proj"):
                yield getattr(mlp, name), self._linear(getattr(mlp, name), name, where)
            yield mlp.down_proj, self._down(mlp, where)
        yield self._body.norm, self._norm(self._body.norm, "norm after the last layer")
        yield self._head, self._linear(self._head, "lm_head", "")

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, sliding_window: int | None
    ) -> Tensor:
        module = self._body.layers[layer].self_attn
        shape, where = self._structure.shapes[layer], f"of layer {layer}"
        for name, found, norm in (("query", query, "q_norm"), ("key", key, "k_norm")):
            self._compare_rope(f"{name} {where}", found, self._take(f"{name[0]}_proj"), getattr(module, norm, None))
        _compare(f"value {where}", _by_token(value), self._take("v_proj"))
        if scale != self._structure.attention_scale:
            raise _mismatch(f"attention scale {where}")
        if sliding_window != shape.sliding_window:
            raise _mismatch(f"sliding window {where}")
        self._attended = self._random.rows(self._structure.num_heads * self._structure.head_dim)
        return self._attended.view(1, len(self._positions), self._structure.num_heads, -1)

    def finish(self, logits: Tensor, modules: int) -> None:
        """Compares the logits, and checks that each of ``modules`` modules was called exactly once."""
        _compare("logits", logits[0], self._take("lm_head"))
        if len(set(self._called)) != len(self._called) or len(self._called) != modules:
            raise _mismatch("order of its parts")

    def _take(self, name: str) -> Tensor:
        """Returns the output of a linear layer, which may be used only once."""
        if name not in self._outputs:
            raise _mismatch(f"order of its parts ({name})")
        return self._outputs.pop(name)

    def _linear(self, linear: nn.Linear, name: str, where: str) -> Callable[[Tensor], Tensor]:
        def forward(rows: Tensor) -> Tensor:
            self._called.append(linear)
            _compare(f"input of {name} {where}".rstrip(), rows[0], self._normed[: rows.shape[1]])
            self._outputs[name] = self._random.rows(linear.out_features, rows.shape[1])
            return self._outputs[name].unsqueeze(0)

        return forward

    def _output(self, linear: nn.Linear, where: str) -> Callable[[Tensor], Tensor]:
        def forward(rows: Tensor) -> Tensor:
            _compare(f"input of o_proj {where}", rows[0], self._attended)
            return self._added(linear)

        return forward

    def _down(self, mlp: Any, where: str) -> Callable[[Tensor], Tensor]:
        def forward(rows: Tensor) -> Tensor:
            gate, up = self._take("gate_proj"), self._take("up_proj")
            _compare(f"activation {_name(mlp.act_fn)} {where}", mlp.act_fn(gate), F.silu(gate))
            _compare(f"input of down_proj {where}", rows[0], F.silu(gate) * up)
            return self._added(mlp.down_proj)

        return forward

    def _added(self, linear: nn.Linear) -> Tensor:
        self._called.append(linear)
        rows = self._random.rows(linear.out_features)
        self._stream = self._stream + rows
        return rows.unsqueeze(0)

    def _norm(self, module: Any, words: str) -> Callable[[Tensor], Tensor]:
        own = module.forward
        first = module is self._body.layers[0].input_layernorm

        def forward(rows: Tensor) -> Tensor:
            self._called.append(module)
            _compare("embedding" if first else f"residual sum before {words}", rows[0], self._stream)
            self._compare_norm(module, words, own)
            self._normed = self._normalized(rows[0], module)
            return self._normed.unsqueeze(0)

        return forward

    def _compare_norm(self, module: Any, words: str, own: Callable[[Tensor], Tensor] | None = None) -> None:
        width = len(module.weight)
        for size in _NORM_SIZES:
            rows = size * self._random.rows(width, 1)
            _compare(words, (own or module.forward)(rows), self._normalized(rows, module))

    def _normalized(self, rows: Tensor, module: Any) -> Tensor:
        squares = rows.square().mean(-1, keepdim=True)
        normalized: Tensor = rows * torch.rsqrt(squares + self._structure.epsilon) * module.weight.detach().float()
        return normalized

    def _compare_rope(self, words: str, found: Tensor, output: Tensor, norm: nn.Module | None) -> None:
        heads = output.view(len(output), -1, self._structure.head_dim)
        if norm is not None:
            heads = self._normalized(heads, norm)
        first, second = heads.chunk(2, dim=-1)
        cosines, sines = self._cosines.unsqueeze(1), self._sines.unsqueeze(1)
        rotated = torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
        errors = _errors(_by_token(found), rotated.flatten(1))
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
