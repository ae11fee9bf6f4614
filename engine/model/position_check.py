"""Checks that a model turns and scales each token by that token's own position, up to the context's end.

A step packs tokens of several requests, at any positions, into one forward pass. A model that reads positions from
somewhere else than ``position_ids`` (the row, the longest position of the pass) is right in transformers' ``generate``
and wrong here, and may be so only far into the context.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from engine.errors import ModelLoadError, first_line
from engine.model.attention_hook import LayerProbe
from engine.model.forwards import FAILURES, one_thread, replaced_forwards
from engine.model.linears import is_plain
from engine.model.rope import LengthDependentRotary

log = logging.getLogger(__name__)

_MAX_ERROR = 0.03
"""Relative, of a query or key: several times bfloat16's rounding, less than any scale by position seen so far."""
_NUM_EVEN = 24
_MAX_NUMBERS = 64
"""Of a configuration, which may hold long lists; more of them are not looked at."""


def spread_positions(context_window: int, config: Any) -> Tensor:
    """int64 positions over the whole context, first and last included, in ascending order.

    They lie evenly, around the powers of two and around the numbers that the configuration names, where whatever begins
    at a position begins.
    """
    last = context_window - 1
    found = {0, 1, 2, 3, last, *torch.linspace(0, last, _NUM_EVEN).long().tolist()}
    found.update(position for exponent in range(2, last.bit_length()) for position in _around(1 << exponent))
    numbers = dict.fromkeys(number for number in _numbers(config.to_dict()) if 0 < number <= last)
    for number in islice(numbers, _MAX_NUMBERS):
        found.update(_around(number))
    return torch.tensor(sorted(position for position in found if 0 <= position <= last))


def shuffled(count: int) -> Tensor:
    """int64 ``[count]``: always the same disorder, so that a row's number says nothing about its position."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))


@one_thread()
@torch.inference_mode()
def check_positions(
    module: PreTrainedModel, rotary: LengthDependentRotary | None, context_window: int, name: str
) -> None:
    """Refuse a model whose queries or keys follow anything but their own token and its position.

    The model reads tokens spread over its context, then the nearer half of them, in order. On a processor, every
    ``torch.arange`` over the rows meanwhile counts from the context's middle on; on a GPU, a row's number that
    indexes something would then end the process. No query and no key may change. Linear layers are cut out, so that
    this takes no time and no rounding.

    Args:
        module: as transformers made it, but for its rotary embedding.
        rotary: stands in the place of that embedding, where it depends on the sequence's length.

    Raises:
        ModelLoadError: a query or a key changes.
    """
    device = next(module.parameters()).device
    positions = spread_positions(context_window, module.config.get_text_config())
    positions = positions[shuffled(len(positions))].to(device)
    rows = positions.argsort()[: -(-len(positions) // 2)]
    linears = [part for part in module.modules() if is_plain(part)]
    with replaced_forwards((linear, _columns(linear)) for linear in linears):
        try:
            whole = _read(module, rotary, positions)
        except FAILURES as error:
            log.warning("whether %s keeps to the positions of its tokens is not known: %s", name, first_line(error))
            return
        try:
            with _ShiftedRows(len(rows), context_window // 2 if device.type == "cpu" else 0):
                half = _read(module, rotary, positions[rows])
        except FAILURES:  # the number of a row indexes something, and is no position
            try:
                half = _read(module, rotary, positions[rows])
            except FAILURES as error:
                log.warning("whether %s keeps to the positions of its tokens is not known: %s", name, first_line(error))
                return
    if len(half) != len(whole):
        raise ModelLoadError(
            f"{name} cannot run: how often it calls attention depends on how many tokens it reads "
            f"({len(whole)} calls for {len(positions)} tokens, {len(half)} for {len(rows)})."
        )
    for expected, found in zip(whole, half, strict=True):
        _compare(name, expected, found, rows)


@dataclass(frozen=True, slots=True)
class _Attended:
    """What one layer attends with, ``[num_tokens, heads, head_dim]`` each."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor


class _Reading(LayerProbe):
    """Records queries, keys and values; hands values on as if each token saw only itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[_Attended] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, _scale: float, _sliding_window: int | None
    ) -> Tensor:
        self.seen.append(_Attended(layer, *(part[0].transpose(0, 1).clone() for part in (query, key, value))))
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)


class _ShiftedRows(TorchFunctionMode):
    """Adds an offset to what ``torch.arange`` returns for all rows of a step."""

    def __init__(self, num_rows: int, offset: int) -> None:
        super().__init__()
        self._num_rows = num_rows
        self._offset = offset

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.arange and result.shape == (self._num_rows,):
            return result + self._offset
        return result


def _columns(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Numbers of the row itself, as many as the layer has outputs."""
    columns = torch.arange(linear.out_features, device=linear.weight.device) % linear.in_features
    return lambda rows: rows.index_select(-1, columns)


def _read(module: PreTrainedModel, rotary: LengthDependentRotary | None, positions: Tensor) -> list[_Attended]:
    if rotary is not None:
        rotary.lengths = positions + 1
    reading = _Reading()
    module(
        input_ids=(positions * 7919 % module.config.get_text_config().vocab_size).unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=torch.tensor([0], device=positions.device),
        paged=reading,
    )
    return reading.seen


def _compare(name: str, expected: _Attended, found: _Attended, rows: Tensor) -> None:
    # Where the same value reaches the layer, positions alone can make a difference.
    is_comparable = _errors(found.value, expected.value[rows]) <= _MAX_ERROR
    for words, own, right in (("queries", found.query, expected.query), ("keys", found.key, expected.key)):
        errors = _errors(own, right[rows])
        if bool((is_comparable & (errors > _MAX_ERROR)).any()):
            raise ModelLoadError(
                f"{name} cannot run here: the {words} of its layer {expected.layer} do not follow the position of "
                "their own token alone, and in a step that serves several requests they would be wrong."
            )


def _errors(found: Tensor, expected: Tensor) -> Tensor:
    """``[num_tokens]``, relative."""
    found, expected = found.flatten(1).float(), expected.flatten(1).float()
    errors: Tensor = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-30)
    return errors


def _around(number: int) -> tuple[int, int, int]:
    return number - 1, number, number + 1


def _numbers(values: Any) -> Iterable[int]:
    """All whole numbers in nested dictionaries and lists."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list | tuple):
        for value in values:
            yield from _numbers(value)
    elif isinstance(values, int) and not isinstance(values, bool):
        yield values
