"""Checks that a model rotates and scales each token by that token's own position, up to the end of the context.

A step packs tokens of several requests, at any positions, into one forward pass. A model that takes positions from
somewhere other than ``position_ids`` (the row index, the largest position of the pass) is right in transformers'
``generate`` and wrong here, possibly only far into the context.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.errors import ModelLoadError, first_line
from engine.model.attention_hook import LayerProbe
from engine.model.forwards import FAILURES, one_thread, stubbed_linears
from engine.model.rope import LengthDependentRotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

_MAX_ERROR = 0.03
"""Largest relative error of a query or key: several times bfloat16's rounding, less than any scaling by position seen
so far."""
_NUM_EVEN = 24
"""Number of evenly spaced positions."""
_MAX_NUMBERS = 64
"""Most numbers of a configuration that are used, as it may hold long lists; further numbers are ignored."""


def spread_positions(context_window: int, config: Any) -> Tensor:
    """Returns int64 positions over the whole context, first and last included, in ascending order.

    They are evenly spaced, and also lie around the powers of two and around the numbers in the configuration, where a
    position-dependent behaviour is likely to start.
    """
    last = context_window - 1
    found = {0, 1, 2, 3, last, *torch.linspace(0, last, _NUM_EVEN).long().tolist()}
    found.update(position for exponent in range(2, last.bit_length()) for position in _around(1 << exponent))
    numbers = dict.fromkeys(number for number in _numbers(config.to_dict()) if 0 < number <= last)
    for number in islice(numbers, _MAX_NUMBERS):
        found.update(_around(number))
    return torch.tensor(sorted(position for position in found if 0 <= position <= last))


def shuffled(count: int) -> Tensor:
    """Returns a fixed permutation, int64 ``[count]``, so that a row's index says nothing about its position."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))


@one_thread()
@torch.inference_mode()
def check_positions(
    module: PreTrainedModel, rotary: LengthDependentRotary | None, context_window: int, name: str
) -> None:
    """Refuses a model whose queries or keys depend on anything but their own token and its position.

    The model reads tokens spread over its context, then the first half of them, in order. On a CPU, every
    ``torch.arange`` over the rows is meanwhile offset to count from the context's middle; on a GPU it is not, because
    indexing with such a row number would crash the process. No query and no key may change. Linear layers are stubbed
    out, so that the check takes no time and no rounding.

    Args:
        module: as transformers made it, except for its rotary embedding.
        rotary: replaces that embedding if it depends on the sequence's length.

    Raises:
        ModelLoadError: a query or a key changes.
    """
    device = next(module.parameters()).device
    positions = spread_positions(context_window, module.config.get_text_config())
    positions = positions[shuffled(len(positions))].to(device)
    rows = positions.argsort()[: -(-len(positions) // 2)]
    with stubbed_linears(module):
        try:
            whole = _read(module, rotary, positions)
        except FAILURES as error:
            log.warning("could not check that %s uses each token's own position: %s", name, first_line(error))
            return
        try:
            with _ShiftedRows(len(rows), context_window // 2 if device.type == "cpu" else 0):
                half = _read(module, rotary, positions[rows])
        except FAILURES:  # the model indexes something by row number, which is not a position
            try:
                half = _read(module, rotary, positions[rows])
            except FAILURES as error:
                log.warning("could not check that %s uses each token's own position: %s", name, first_line(error))
                return
    if len(half) != len(whole):
        raise ModelLoadError(
            f"{name} cannot run here: the number of its attention calls depends on the number of tokens "
            f"({len(whole)} calls for {len(positions)} tokens, {len(half)} for {len(rows)})."
        )
    for expected, found in zip(whole, half, strict=True):
        _compare(name, expected, found, rows)


@dataclass(frozen=True, slots=True)
class _Attended:
    """Query, key and value of one attention call, ``[num_tokens, heads, head_dim]`` each."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor


class _Reading(LayerProbe):
    """Records queries, keys and values; returns the values as if each token attended only to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[_Attended] = []

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        _scale: float,
        _sliding_window: int | None,
        _softcap: float,
        _sinks: Tensor | None,
    ) -> Tensor:
        self.seen.append(_Attended(layer, *(part[0].transpose(0, 1).clone() for part in (query, key, value))))
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)


class _ShiftedRows(TorchFunctionMode):
    """Adds an offset to the result of ``torch.arange`` over all rows of a step."""

    def __init__(self, num_rows: int, offset: int) -> None:
        super().__init__()
        self._num_rows = num_rows
        self._offset = offset

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.arange and result.shape == (self._num_rows,):
            return result + self._offset
        return result


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
    # Only if a token's value is unchanged can a different query or key be due to its position alone.
    is_comparable = _errors(found.value, expected.value[rows]) <= _MAX_ERROR
    for words, own, right in (("queries", found.query, expected.query), ("keys", found.key, expected.key)):
        errors = _errors(own, right[rows])
        if bool((is_comparable & (errors > _MAX_ERROR)).any()):
            raise ModelLoadError(
                f"{name} cannot run here: the {words} of its layer {expected.layer} do not follow the position of "
                "their own token alone, and in a step that serves several requests they would be wrong."
            )


def _errors(found: Tensor, expected: Tensor) -> Tensor:
    """Returns relative errors, ``[num_tokens]``."""
    found, expected = found.flatten(1).float(), expected.flatten(1).float()
    errors: Tensor = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-30)
    return errors


def _around(number: int) -> tuple[int, int, int]:
    return number - 1, number, number + 1


def _numbers(values: Any) -> Iterable[int]:
    """Yields all integers in nested dictionaries and lists."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list | tuple):
        for value in values:
            yield from _numbers(value)
    elif isinstance(values, int) and not isinstance(values, bool):
        yield values
