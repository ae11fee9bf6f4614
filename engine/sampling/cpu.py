"""Sampling where the logits are in the processor's memory: row by row, in NumPy.

A row of a vocabulary fits the processor's cache, and NumPy sorts, partitions and searches one many times faster than
PyTorch's operators do on a processor. Where steps run in C++, :mod:`engine.execution.native.sampling` does the same, and on a GPU
:mod:`engine.sampling.gpu`, with the same noise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from engine.sampling.sampler import SamplingRow

Floats = NDArray[np.float32]

_OF_A_SET = 16
"""Tokens whose highest score stands for them."""
_VISIBLE = 80
"""Exponents so far below the highest give numbers that are still told apart in float32."""
_BLOCK = 64
"""Weights that are added up one after another; of more, the sums of such blocks are."""


def adjust(logits: Tensor, rows: Sequence[SamplingRow]) -> Floats:
    """The logits in float32 with each row's bias, penalties and bans; ``logits`` itself is left unchanged."""
    converted = logits.float()
    adjusting = [index for index, row in enumerate(rows) if row.adjusts_logits]
    if adjusting and converted is logits:
        converted = logits.clone()
    scores: Floats = converted.numpy()
    for index in adjusting:
        _adjust(scores[index], rows[index])
    return scores


def likeliest(scores: Floats) -> tuple[list[int], list[float]]:
    """The likeliest token of each row, and its score."""
    tokens: list[int] = scores.argmax(axis=-1).tolist()
    return tokens, [scores.item(index, token) for index, token in enumerate(tokens)]


def draw(
    scores: Floats, highest: Sequence[float], rows: Sequence[SamplingRow], uniform_numbers: Sequence[float]
) -> list[int]:
    """As :meth:`engine.sampling.sampler.SamplingBackend.draw` has it."""
    with np.errstate(over="ignore"):  # at a low temperature, of an unlikely token's score, which becomes -inf
        return [_draw(*each) for each in zip(scores, highest, rows, uniform_numbers, strict=True)]


def _adjust(scores: Floats, row: SamplingRow) -> None:
    """Touches only the tokens concerned: costs what the text is long, not what the vocabulary is large."""
    scores[row.bias_ids] += row.bias_values
    counts = row.counts
    if counts is not None:
        values = scores[counts.ids]
        values = np.where(values < 0, values * row.repetition_penalty, values / row.repetition_penalty)
        scores[counts.ids] = (
            values - row.frequency_penalty * counts.in_reply - row.presence_penalty * (counts.in_reply > 0)
        )
    scores[row.banned()] = -np.inf


def _draw(scores: Floats, highest: float, row: SamplingRow, uniform_number: float) -> int:
    candidates = _candidates(scores, highest, row) if 0 < row.top_k < len(scores) else None
    if candidates is None:
        return _draw_among(scores, highest, row, uniform_number)
    return int(candidates[_draw_among(scores[candidates], highest, row, uniform_number)])


def _candidates(scores: Floats, highest: float, row: SamplingRow) -> NDArray[np.int64] | None:
    """Tokens that top-k may keep, all of them and mostly few others; None where they are not found quickly.

    The highest scores of as many sets of tokens are at least as high as the ``top_k``-th of all, which so needs no
    weights, and no order, of the whole vocabulary.
    """
    sets = len(scores) // _OF_A_SET
    if sets <= row.top_k:
        return None
    tops = scores[: sets * _OF_A_SET].reshape(_OF_A_SET, sets).max(0)
    bound = float(np.partition(tops, sets - row.top_k)[sets - row.top_k])
    if highest - bound > _VISIBLE * row.temperature:
        return None
    # Weights of what lies lower are surely lower, too, and not only before they are rounded.
    return (scores >= bound - 1e-4 * row.temperature - 1e-6 * (highest - bound)).nonzero()[0]


def _draw_among(scores: Floats, highest: float, row: SamplingRow, uniform_number: float) -> int:
    # The likeliest token weighs 1, so nothing overflows, however low the temperature.
    weights: Floats = np.exp((scores - highest) / row.temperature)
    total = float(weights.sum(dtype=np.float64)) if row.top_p < 1 else math.inf
    if total < 2 and row.top_p * total <= 1:  # it makes up the nucleus alone; two that are equal would weigh 2
        return int(weights.argmax())
    lowest = _lowest_kept(weights, total, row)
    if lowest == 0:
        return _invert(_typical(weights, row.typical_p), uniform_number)
    kept = (weights >= lowest).nonzero()[0]
    if len(kept) > 1:
        return int(kept[_invert(_typical(weights[kept], row.typical_p), uniform_number)])
    return int(kept[0])


def _lowest_kept(weights: Floats, total: float, row: SamplingRow) -> float:
    """The lowest weight that passes top-k, top-p and min-p; 0 where nothing is filtered. Equal weights pass alike.

    Args:
        total: of the weights; looked at for top-p alone.
    """
    lowest = row.min_p
    among = weights
    if 0 < row.top_k < len(weights):
        at = len(weights) - row.top_k
        kth = float(np.partition(weights, at)[at])
        lowest = max(lowest, kth)
        if row.top_p < 1:
            among = weights[(weights >= kth).nonzero()[0]]
            total = float(among.sum(dtype=np.float64))
    return max(lowest, _lowest_of_nucleus(among, total, row.top_p)) if row.top_p < 1 else lowest


def _lowest_of_nucleus(weights: Floats, total: float, top_p: float) -> float:
    """The weight of the token that completes the share ``top_p``, taken from the heaviest, which weighs 1, down."""
    share = top_p * total
    if share <= 1:
        return 1.0
    # All the tokens up to this weight hold less together than the nucleus leaves out, so it is found without them.
    negligible = (total - share) / (2 * len(weights))
    heaviest = weights[(weights > negligible).nonzero()[0]]
    heaviest.sort()
    heaviest = heaviest[::-1]
    return float(heaviest[_first_beyond(heaviest, math.nextafter(share, 0))])


def _typical(weights: Floats, typical_p: float) -> Floats:
    """Locally typical sampling: 0 for what is much likelier or much less likely than expected.

    Meister, Pimentel, Wiher and Cotterell, "Locally Typical Sampling" (TACL 2023): tokens are taken in the order of
    ``|-log p - H|``, with ``H`` the entropy of the distribution, until they have the mass ``typical_p``; the token
    that completes it stays. As in transformers, the distribution is the one that the filters before have left.
    """
    if typical_p == 1:
        return weights
    p = weights / weights.sum(dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0 is -inf, and 0 log 0 is 0
        log_p = np.log(p)
        surprise = np.abs(log_p - np.nansum(p * log_p))
    order = surprise.argsort(kind="stable")
    last = min(int((p[order].cumsum() < typical_p).sum()), len(order) - 1)
    return np.where(surprise <= surprise[order[last]], weights, np.float32(0))


def _invert(weights: Floats, uniform_number: float) -> int:
    """The token at which the cumulative distribution passes ``uniform_number``."""
    return _first_beyond(weights, uniform_number * float(weights.sum(dtype=np.float64)))


def _first_beyond(weights: Floats, target: float) -> int:
    """Where the running sum of ``weights`` first exceeds ``target``; never at a weight of 0."""
    if len(weights) <= 4 * _BLOCK:
        return _search(weights.tolist(), target)[0]
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    block, before = _search(blocks.tolist(), target)
    first = block * _BLOCK
    return first + _search(weights[first : first + _BLOCK].tolist(), target - before)[0]


def _search(weights: list[float], target: float) -> tuple[int, float]:
    """Where the running sum first exceeds ``target``, and what it is before. Of a list: most are short."""
    sums = [0.0, *accumulate(weights)]
    # Rounding must not carry the target beyond the last weight that adds anything.
    at = bisect_right(sums, min(target, math.nextafter(sums[-1], 0)), lo=1) - 1
    return at, sums[at]
