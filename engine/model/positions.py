"""Checks that a model turns and scales each token by that token's own position, up to the context's end.

A step packs tokens of several requests, at any positions, into one forward pass. A model that reads positions from
somewhere else than ``position_ids`` (the row, the longest position of the pass) is right in transformers' ``generate``
and wrong here, and may be so only far into the context.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.attention.seam import LayerProbe
from engine.errors import ModelLoadError

if TYPE_CHECKING:
    from engine.model.loading import LoadedModel

_MAX_ERROR = 0.03
"""Relative, of a query or key: several times bfloat16's rounding, less than any scale by position seen so far."""
_NUM_EVEN = 24


def spread_positions(context_window: int, config: Any) -> Tensor:
    """int64 positions over the whole context, first and last included, in ascending order.

    They lie evenly, at and before the powers of two, and around every number that the configuration names: whatever
    begins at a position begins at one of these.
    """
    last = context_window - 1
    found = {0, 1, 2, 3, last, *torch.linspace(0, last, _NUM_EVEN).long().tolist()}
    found.update(position for exponent in range(2, last.bit_length()) for position in _around(1 << exponent))
    for number in _numbers(config.to_dict()):
        found.update(_around(number))
    return torch.tensor(sorted(position for position in found if 0 <= position <= last))


def shuffled(count: int) -> Tensor:
    """int64 ``[count]``: always the same disorder, so that a row's number says nothing about its position."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))


def check_positions(model: LoadedModel) -> None:
    """Refuse a model whose queries or keys follow anything but their own token and its position.

    The model reads tokens spread over its context, then half of them in another order; last, every
    ``torch.arange`` over the rows counts from the context's middle on. No query and no key may change.

    Raises:
        ModelLoadError: one does.
    """
    positions = spread_positions(model.max_position_embeddings, model.config.get_text_config())
    positions = positions[shuffled(len(positions))].to(model.device)
    whole = _read(model, positions)
    few = shuffled(len(positions))[: len(positions) // 2]
    few = few[positions[few.to(model.device)].argsort().cpu()]  # in order, and without most others
    _compare(model.name, whole, _read(model, positions[few.to(model.device)]), few)
    try:
        with _ShiftedRows(len(positions), model.max_position_embeddings // 2):
            elsewhere = _read(model, positions)
    except (IndexError, RuntimeError, ValueError):
        return  # the numbers of the rows index something, and are not positions
    _compare(model.name, whole, elsewhere, torch.arange(len(positions)))


class _Reading(LayerProbe):
    """Records queries, keys and values; hands values on as if each token saw only itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, Tensor, Tensor, Tensor]] = []  #: layer, ``[num_tokens, heads, head_dim]`` each

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, sliding_window: int | None
    ) -> Tensor:
        self.seen.append((layer, *(part[0].transpose(0, 1).clone() for part in (query, key, value))))
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


@torch.inference_mode()
def _read(model: LoadedModel, positions: Tensor) -> list[tuple[int, Tensor, Tensor, Tensor]]:
    reading = _Reading()
    tokens = positions * 7919 % model.vocab_size
    rows = torch.tensor([0], device=positions.device)
    model.logits(tokens.unsqueeze(0), positions.unsqueeze(0), rows, reading, positions + 1)
    return reading.seen


def _compare(
    name: str,
    whole: list[tuple[int, Tensor, Tensor, Tensor]],
    part: list[tuple[int, Tensor, Tensor, Tensor]],
    rows: Tensor,
) -> None:
    for (layer, *expected), (_layer, *found) in zip(whole, part, strict=True):
        query, key, value = (
            _errors(one, other[rows.to(other.device)]) for one, other in zip(found, expected, strict=True)
        )
        is_comparable = value <= _MAX_ERROR  # what reaches the layer is the same, so positions alone can differ
        for words, errors in (("queries", query), ("keys", key)):
            if bool((is_comparable & ~(errors <= _MAX_ERROR)).any()):
                raise ModelLoadError(
                    f"{name} cannot run here: the {words} of its layer {layer} do not follow the position of their "
                    "own token alone, and in a step that serves several requests they would be wrong."
                )


def _errors(found: Tensor, expected: Tensor) -> Tensor:
    """``[num_tokens]``, relative."""
    found, expected = found.flatten(1).float(), expected.flatten(1).float()
    return (found - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-30)


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
