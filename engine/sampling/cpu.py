"""Samples on the CPU: row by row, in NumPy.

A row of logits fits the CPU's cache, and NumPy sorts, partitions and searches it many times faster than PyTorch's CPU
operators. :mod:`engine.execution.native.sampling` (steps in C++) and :mod:`engine.sampling.gpu` do the same with the
same noise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling.grammar import allowed_tokens

if TYPE_CHECKING:
    from engine.sampling.sampler import SamplingRow

Floats = NDArray[np.float32]

_SET_SIZE = 16
"""Tokens per set; top-k's bound is found among the sets' highest scores."""
_MAX_EXPONENT_RANGE = 80
"""Exponents up to this far below the highest still give distinct float32 weights."""
_BLOCK = 64
"""Weights per block; a longer running sum is searched by the sums of such blocks first."""


class Filters(Protocol):
    """The filters by weight, as :class:`SamplingRow` has them."""

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def min_p(self) -> float: ...

    @property
    def typical_p(self) -> float: ...


def adjust(logits: Tensor, rows: Sequence[SamplingRow]) -> Floats:
    """Returns the logits in float32 with each row's bias, penalties and bans; ``logits`` itself is left unchanged."""
    converted = logits.float()
    adjusting = [index for index, row in enumerate(rows) if row.adjusts_logits]
    if adjusting and converted is logits:
        converted = logits.clone()
    scores: Floats = converted.numpy()
    for index in adjusting:
        banned, mask = rows[index].bans()
        if mask is not None:
            np.copyto(scores[index], -np.inf, where=~allowed_tokens(mask))
        adjust_row(scores[index], rows[index], banned)
    return scores


def likeliest(scores: Floats) -> tuple[list[int], list[float]]:
    """Returns the likeliest token of each row, and its score."""
    tokens: list[int] = scores.argmax(axis=-1).tolist()
    return tokens, [scores.item(index, token) for index, token in enumerate(tokens)]


def draw(
    scores: Floats, highest: Sequence[float], rows: Sequence[SamplingRow], uniform_numbers: Sequence[float]
) -> list[int]:
    """Implements :meth:`engine.sampling.sampler.SamplingBackend.draw`."""
    with np.errstate(over="ignore"):  # at a low temperature an unlikely token's score overflows to -inf, as it should
        return [_draw(*each) for each in zip(scores, highest, rows, uniform_numbers, strict=True)]


def adjust_row(scores: Floats, row: SamplingRow, banned: NDArray[np.int64]) -> None:
    """Applies bias, penalties and bans in place. The cost grows with the text, not with the vocabulary."""
    if row.bias_ids.size:
        scores[row.bias_ids] += row.bias_values
    counts = row.counts
    if counts is not None:
        values = scores[counts.ids]
        values = np.where(values < 0, values * row.repetition_penalty, values / row.repetition_penalty)
        scores[counts.ids] = (
            values - row.frequency_penalty * counts.in_reply - row.presence_penalty * (counts.in_reply > 0)
        )
    if banned.size:
        scores[banned] = -np.inf


def kept_weights(scores: Floats, row: SamplingRow, filters: Filters | None = None) -> Floats:
    """Returns the weight with which :func:`draw`, or the greedy choice, takes each token; 0 for those never taken.

    Args:
        scores: float32 ``[vocab_size]``, as from :func:`adjust`, with a finite maximum.
        filters: apply these instead of the row's own filters.
    """
    highest = float(scores.max())
    if row.is_greedy:
        likeliest_only: Floats = np.zeros_like(scores)
        likeliest_only[scores.argmax()] = 1
        return likeliest_only
    with np.errstate(over="ignore"):
        if row.top_n_sigma > 0:
            scores = _within_sigma(scores, highest, row.top_n_sigma)
        weights: Floats = np.exp((scores - highest) / row.temperature)
    applied: Filters = row if filters is None else filters
    total = float(weights.sum(dtype=np.float64)) if applied.top_p < 1 else math.inf
    kept = ((weights >= _lowest_kept(weights, total, applied)) & (weights > 0)).nonzero()[0]
    result: Floats = np.zeros_like(weights)
    result[kept] = _typical(weights[kept], applied.typical_p) if len(kept) > 1 else weights[kept]
    return result


def _draw(scores: Floats, highest: float, row: SamplingRow, uniform_number: float) -> int:
    if row.top_n_sigma > 0:
        scores = _within_sigma(scores, highest, row.top_n_sigma)
    candidates = _candidates(scores, highest, row) if 0 < row.top_k < len(scores) else None
    if candidates is None:
        return _draw_among(scores, highest, row, uniform_number)
    return int(candidates[_draw_among(scores[candidates], highest, row, uniform_number)])


def _within_sigma(scores: Floats, highest: float, top_n_sigma: float) -> Floats:
    """Returns the scores with -inf for tokens more than ``top_n_sigma`` standard deviations below the highest.

    Tang, Liu, Xu and Huang, "Top-nσ: Not All Logits Are You Need" (arXiv 2411.07641). The deviation is that of the
    row's scores, of which banned tokens (-inf) are no part, as in llama.cpp. Dividing all scores by a temperature
    divides it too, so the same tokens are kept at every temperature.
    """
    exact = scores.astype(np.float64)
    lowest = highest - top_n_sigma * exact[np.isfinite(exact)].std()
    return np.where(exact < lowest, np.float32(-np.inf), scores)


def _candidates(scores: Floats, highest: float, row: SamplingRow) -> NDArray[np.int64] | None:
    """Returns all tokens that top-k may keep, and few others; None where no fast bound exists.

    The vocabulary is divided into sets. The ``top_k``-th highest of the sets' maxima is at most the ``top_k``-th
    highest score of all, so it bounds the candidates without weighing or sorting the whole vocabulary.
    """
    sets = len(scores) // _SET_SIZE
    if sets <= row.top_k:
        return None
    tops = scores[: sets * _SET_SIZE].reshape(_SET_SIZE, sets).max(0)
    bound = float(np.partition(tops, sets - row.top_k)[sets - row.top_k])
    if highest - bound > _MAX_EXPONENT_RANGE * row.temperature:
        return None
    # The margin ensures that the weights of excluded tokens are lower even after rounding.
    return (scores >= bound - 1e-4 * row.temperature - 1e-6 * (highest - bound)).nonzero()[0]


def _draw_among(scores: Floats, highest: float, row: SamplingRow, uniform_number: float) -> int:
    # The likeliest token weighs 1, so nothing overflows, however low the temperature.
    weights: Floats = np.exp((scores - highest) / row.temperature)
    total = float(weights.sum(dtype=np.float64)) if row.top_p < 1 else math.inf
    if total < 2 and row.top_p * total <= 1:  # the likeliest token is the whole nucleus; two equal ones would weigh 2
        return int(weights.argmax())
    lowest = _lowest_kept(weights, total, row)
    if lowest == 0:
        return _invert(_typical(weights, row.typical_p), uniform_number)
    kept = (weights >= lowest).nonzero()[0]
    if len(kept) > 1:
        return int(kept[_invert(_typical(weights[kept], row.typical_p), uniform_number)])
    return int(kept[0])


def _lowest_kept(weights: Floats, total: float, row: Filters) -> float:
    """Returns the lowest weight that passes top-k, top-p and min-p; 0 if nothing is filtered. Ties pass together.

    Args:
        weights: float32 ``[vocab_size]``.
        total: sum of the weights; used for top-p only.
        row: the filters.
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
    """Returns the weight of the token that completes the share ``top_p``, from the heaviest (weight 1) down."""
    share = top_p * total
    if share <= 1:
        return 1.0
    # All tokens up to this weight together hold less than the nucleus leaves out, so they are skipped.
    negligible = (total - share) / (2 * len(weights))
    heaviest = weights[(weights > negligible).nonzero()[0]]
    heaviest.sort()
    heaviest = heaviest[::-1]
    return float(heaviest[_first_beyond(heaviest, math.nextafter(share, 0))])


def _typical(weights: Floats, typical_p: float) -> Floats:
    """Applies locally typical sampling: weight 0 for tokens much likelier or much less likely than expected.

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
    """Returns the index at which the cumulative distribution passes ``uniform_number``."""
    return _first_beyond(weights, uniform_number * float(weights.sum(dtype=np.float64)))


def _first_beyond(weights: Floats, target: float) -> int:
    """Returns the index where the running sum of ``weights`` first exceeds ``target``; never one of weight 0."""
    if len(weights) <= 4 * _BLOCK:
        return _search(weights.tolist(), target)[0]
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    block, before = _search(blocks.tolist(), target)
    first = block * _BLOCK
    return first + _search(weights[first : first + _BLOCK].tolist(), target - before)[0]


def _search(weights: list[float], target: float) -> tuple[int, float]:
    """Returns where the running sum first exceeds ``target``, and the sum before that.

    Takes a list, because most inputs are short.
    """
    sums = [0.0, *accumulate(weights)]
    # Rounding must not carry the target beyond the last weight that adds anything.
    at = bisect_right(sums, min(target, math.nextafter(sums[-1], 0)), lo=1) - 1
    return at, sums[at]
