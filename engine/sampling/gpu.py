"""Samples on a GPU: all rows at once, in as few kernels as possible.

:mod:`engine.sampling.cpu` does the same on a CPU, with the same noise. :mod:`engine.sampling.async_sampler` samples
without waiting for the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device.host_to_device import to_device
from engine.sampling.penalties import TokenCounts

if TYPE_CHECKING:
    from engine.sampling.sampler import SamplingRow

FIRST_CANDIDATES = 256
"""Number of the likeliest tokens ranked at first."""
CANDIDATES_GROWTH = 8
"""Factor by which that number grows when it was too small."""


def likeliest(scores: Tensor) -> tuple[list[int], list[float]]:
    """Returns the likeliest token of each row, and its score."""
    highest, tokens = scores.max(dim=-1)
    return tokens.tolist(), highest.tolist()


# -- bias, penalties and bans -----------------------------------------------------------------------------


@torch.inference_mode()
def adjust(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Applies bias, penalties and bans. Returns ``logits`` itself, in its own dtype, if no row has any."""
    biased = [index for index, row in enumerate(rows) if row.bias_ids.size]
    penalized = [(index, counts) for index, row in enumerate(rows) if (counts := row.counts) is not None]
    banned = [(index, ids) for index, row in enumerate(rows) if (ids := row.banned()).size]
    if not (biased or penalized or banned):
        return logits
    scores = logits.to(torch.float32, copy=True)
    if biased:
        at = _positions(biased, [rows[index].bias_ids for index in biased], scores)
        scores[at] += _column([rows[index].bias_values for index in biased], scores)
    if penalized:
        _penalize(scores, rows, penalized)
    if banned:
        scores[_positions([index for index, _ in banned], [ids for _, ids in banned], scores)] = -math.inf
    return scores


def _penalize(scores: Tensor, rows: Sequence[SamplingRow], penalized: Sequence[tuple[int, TokenCounts]]) -> None:
    """Applies penalties in place. The cost grows with the texts, not with the vocabulary."""
    at = _positions([index for index, _ in penalized], [counts.ids for _, counts in penalized], scores)
    in_reply = _column([counts.in_reply for _, counts in penalized], scores)
    lengths = to_device([counts.ids.size for _, counts in penalized], torch.int64, scores.device)

    def spread(values: list[float]) -> Tensor:
        return to_device(values, torch.float32, scores.device).repeat_interleave(lengths)

    repetition = spread([rows[index].repetition_penalty for index, _ in penalized])
    presence = spread([rows[index].presence_penalty for index, _ in penalized])
    frequency = spread([rows[index].frequency_penalty for index, _ in penalized])
    values = scores[at]
    values = torch.where(values < 0, values * repetition, values / repetition)
    scores[at] = values - frequency * in_reply - presence * (in_reply > 0)


def _positions(indices: Sequence[int], ids: Sequence[NDArray[Any]], scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns row and column indices of ``ids[i]`` in row ``indices[i]``."""
    row = np.repeat(np.asarray(indices, dtype=np.int64), [part.size for part in ids])
    return torch.from_numpy(row).to(scores.device), torch.from_numpy(np.concatenate(ids)).to(scores.device)


def _column(parts: Sequence[NDArray[Any]], scores: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(scores.device, torch.float32)


# -- temperature and filters ------------------------------------------------------------------------------


@torch.inference_mode()
def draw(
    scores: Tensor, highest: Sequence[float], rows: Sequence[SamplingRow], uniform_numbers: Sequence[float]
) -> list[int]:
    """Implements :meth:`engine.sampling.sampler.SamplingBackend.draw`."""
    # With the likeliest token at 0, no exponential overflows, however low the temperature.
    scaled = within_sigma(scores.float(), rows) - column_of(highest, scores)
    scaled /= column_of([row.temperature for row in rows], scores)
    noise = to_device(uniform_numbers, torch.float64, scores.device)
    ranked = [index for index, row in enumerate(rows) if row.is_ranked]
    unranked = [index for index, row in enumerate(rows) if not row.is_ranked]
    tokens = [0] * len(rows)
    if ranked:
        values, ids = _survivors(select(scaled, ranked), [rows[index] for index in ranked])
        _put(tokens, ranked, draw_ranked(values, ids, [rows[index] for index in ranked], select(noise, ranked)))
    if unranked:
        chosen = [rows[index] for index in unranked]
        _put(tokens, unranked, draw_unranked(select(scaled, unranked), chosen, select(noise, unranked)))
    return tokens


def within_sigma(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Applies top-n-sigma: -inf for tokens too many standard deviations below the row's highest score.

    See :func:`engine.sampling.cpu._within_sigma`. In float64, so that every device keeps the same tokens.

    Args:
        scores: float32 ``[n, vocab_size]``, before the temperature; left unchanged.
        rows: ``n`` rows; those with ``top_n_sigma`` 0 keep everything and cost nothing.
    """
    chosen = [index for index, row in enumerate(rows) if row.top_n_sigma > 0]
    if not chosen:
        return scores
    at = to_device(chosen, torch.int64, scores.device)
    part = scores[at]
    exact = part.double()
    finite = exact.masked_fill(part == -math.inf, math.nan)
    sigma = (finite - finite.nanmean(-1, keepdim=True)).square().nanmean(-1, keepdim=True).sqrt()
    top_n_sigma = to_device([rows[index].top_n_sigma for index in chosen], torch.float64, scores.device).unsqueeze(-1)
    lowest = exact.amax(-1, keepdim=True) - top_n_sigma * sigma
    return scores.index_copy(0, at, part.masked_fill(exact < lowest, -math.inf))


def draw_ranked(values: Tensor, ids: Tensor, rows: Sequence[SamplingRow], noise: Tensor) -> Tensor:
    """Samples token ids ``[n]`` from the survivors' scores ``[n, c]`` and their token ids, in ascending order."""
    return ids.gather(-1, _invert(_keep_typical(values, rows), noise)).squeeze(-1)


def draw_unranked(scaled: Tensor, rows: Sequence[SamplingRow], noise: Tensor) -> Tensor:
    """Samples token ids ``[n]`` from scores ``[n, vocab_size]`` of rows whose filters need no sorted tokens."""
    if any(row.min_p > 0 for row in rows):
        scaled = scaled.masked_fill(scaled < _floor(rows, scaled), -math.inf)
    return _invert(_keep_typical(scaled, rows), noise).squeeze(-1)


def _survivors(scaled: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    """Filters ``scaled`` ``[n, vocab_size]`` by top-k, top-p and min-p.

    All three keep the tokens at or above some score, so the survivors are found without sorting the vocabulary:
    a few hundred of the likeliest tokens are ranked, and more only while some row has not reached its threshold.

    Returns:
        scores ``[n, c]``, -inf where a row has fewer than ``c`` survivors, and their token ids ``[n, c]``, both in
        vocabulary order.
    """
    count = max(FIRST_CANDIDATES, *(row.top_k + 1 for row in rows))
    while True:
        values, ids, kept, exact = rank(scaled, rows, count)
        if bool(exact.all()):
            break
        count *= CANDIDATES_GROWTH
    widest = int(kept.sum(-1).max())
    return by_id(values[:, :widest], ids[:, :widest], kept[:, :widest])


def rank(scaled: Tensor, rows: Sequence[SamplingRow], count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ranks the likeliest tokens of ``scaled`` ``[n, vocab_size]`` and decides which of them each row keeps.

    Returns:
        ``[n, c]`` scores, highest first, their token ids and whether they are kept, where ``c`` is ``count``, at most
        ``vocab_size``; then ``[n]`` whether more candidates would change nothing.
    """
    vocab_size = scaled.shape[-1]
    # Top-p without top-k is a share of the whole vocabulary's mass.
    whole = scaled.exp().sum(-1, keepdim=True, dtype=torch.float64) if any(not row.top_k for row in rows) else None
    values, ids = scaled.topk(min(count, vocab_size), dim=-1)
    threshold, exact = _threshold(values, whole, rows)
    return values, ids, values >= threshold, exact if count < vocab_size else torch.ones_like(exact)


def by_id(values: Tensor, ids: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts scores (-inf for tokens that are not kept) and token ids by id.

    topk returns equal scores in any order; sorted by id, the sampled token does not depend on how many were ranked.
    """
    ids, order = ids.sort(dim=-1)
    return values.masked_fill(~kept, -math.inf).gather(-1, order), ids


def _threshold(values: Tensor, whole: Tensor | None, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    """Returns the lowest score each row keeps, ``[n, 1]``, and ``[n]`` whether more candidates would not change it.

    Args:
        values: ``[n, c]`` scaled scores of the ``c`` likeliest tokens, highest first.
        whole: ``[n, 1]`` float64 mass of the vocabulary; may be None when every row has a top-k.
    """
    count = values.shape[-1]
    has_top_k = to_device([[row.top_k > 0] for row in rows], torch.bool, values.device)
    last = to_device([[min(row.top_k or count, count) - 1] for row in rows], torch.int64, values.device)
    kth = lowest = torch.where(has_top_k, values.gather(-1, last), -math.inf)
    if any(row.top_p < 1 for row in rows):
        top_p = column_of([row.top_p for row in rows], values).double()
        mass = values.double().masked_fill_(values < lowest, -math.inf).exp_()
        total = mass.sum(-1, keepdim=True)
        if whole is not None:
            total = torch.where(has_top_k, total, whole)
        # A token stays if the likelier ones do not yet hold the share: the one that completes it stays.
        before = (mass.cumsum(-1) - mass) / total
        last = (before < top_p).sum(-1, keepdim=True).clamp_(min=1) - 1
        lowest = torch.where(top_p < 1, torch.maximum(lowest, values.gather(-1, last)), lowest)
    threshold = torch.maximum(lowest, _floor(rows, values))
    # With top-k, the nucleus is a share of all tokens it keeps, so all ties with the k-th must be among the candidates.
    # Where the last candidate is dropped already, all others are.
    least = values[:, -1]
    return threshold, (least < torch.where(has_top_k, kth, threshold).squeeze(-1)) | (least == -math.inf)


def _keep_typical(scaled: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Applies locally typical sampling: -inf for tokens much likelier or much less likely than expected.

    See :func:`engine.sampling.cpu._typical`.

    Args:
        scaled: ``[n, c]``, -inf where a token has been dropped; left unchanged.
        rows: ``n`` rows; those with ``typical_p`` 1 keep everything and cost nothing.
    """
    chosen = [index for index, row in enumerate(rows) if row.typical_p < 1]
    if not chosen:
        return scaled
    at = to_device(chosen, torch.int64, scaled.device)
    part = scaled[at]
    log_p = part.double().log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p).nansum(-1, keepdim=True)  # 0 log 0 is 0
    surprise = (log_p + entropy).abs()
    ordered, order = surprise.sort(dim=-1)
    typical_p = column_of([rows[index].typical_p for index in chosen], scaled).double()
    last = (p.gather(-1, order).cumsum(-1) < typical_p).sum(-1, keepdim=True).clamp_(max=scaled.shape[-1] - 1)
    part = part.masked_fill(surprise > ordered.gather(-1, last), -math.inf)
    return scaled.index_copy(0, at, part)


def _invert(scores: Tensor, noise: Tensor) -> Tensor:
    """Returns where the cumulative distribution passes ``noise`` ``[n]``: indices ``[n, 1]`` into ``scores``."""
    cumulative = scores.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Rounding must not carry the target to the very end, beyond the last token that has any mass.
    target = torch.minimum(noise.unsqueeze(-1) * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, target, right=True)
    return found.clamp_(max=scores.shape[-1] - 1)  # beyond the end where scores are NaN


def _floor(rows: Sequence[SamplingRow], like: Tensor) -> Tensor:
    """Returns the lowest scaled score that min-p keeps, ``[n, 1]``."""
    return column_of([math.log(row.min_p) if row.min_p > 0 else -math.inf for row in rows], like)


def column_of(values: Sequence[float], like: Tensor) -> Tensor:
    """Returns float32 ``[n, 1]`` on the device of ``like``."""
    return to_device(values, torch.float32, like.device).unsqueeze(-1)


def select(tensor: Tensor, indices: Sequence[int]) -> Tensor:
    """Returns the given rows of a tensor; the tensor itself if ``indices`` are all of them."""
    return tensor if len(indices) == tensor.shape[0] else tensor[to_device(indices, torch.int64, tensor.device)]


def _put(tokens: list[int], indices: Sequence[int], picked: Tensor) -> None:
    for index, token in zip(indices, picked.tolist(), strict=True):
        tokens[index] = token
