"""Samples tokens and leaves them on the device, without waiting for a result.

Only for rows that use the model's scores unchanged: penalties, bans and the like depend on the text, whose last token
is not known yet. Samples the same tokens as :mod:`engine.sampling.gpu`. That module may read its results back and rank
more tokens; here the caller learns later that a nucleus exceeded the ranked tokens, and calls :func:`resample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.device.host_to_device import to_device
from engine.sampling.gpu import (
    CANDIDATES_GROWTH,
    by_id,
    column_of,
    draw_ranked,
    draw_unranked,
    rank,
    select,
    within_sigma,
)

if TYPE_CHECKING:
    from engine.sampling.sampler import SamplingRow


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each of ``n`` rows, on the device."""

    tokens: Tensor  #: int64 ``[n]``: valid token ids, whatever the scores are
    usable: Tensor  #: bool ``[n]``: the row's scores hold neither NaN nor +inf, and not -inf alone
    final: Tensor  #: bool ``[n]``: the token is final; otherwise call :func:`resample`
    scaled: Tensor  #: float32 ``[m, vocab_size]``: scaled scores of the rows in ``ranked``
    noise: Tensor  #: float64 ``[m]``: noise of the rows in ``ranked``
    ranked: tuple[int, ...]  #: indices of the rows that were sampled from the likeliest tokens


@torch.inference_mode()
def sample_async(logits: Tensor, rows: Sequence[SamplingRow], noise: Sequence[float]) -> SampledTokens:
    """Samples the next token of each row.

    Args:
        logits: ``[n, vocab_size]``; may be overwritten once the work queued here is done.
        rows: ``n`` rows, none of which adjusts its scores.
        noise: one number for each row, in [0, 1).
    """
    highest, tokens = logits.max(dim=-1)
    final = torch.ones_like(tokens, dtype=torch.bool)
    random = [index for index, row in enumerate(rows) if not row.is_greedy]
    scaled, numbers = logits.new_empty(0, dtype=torch.float32), logits.new_empty(0, dtype=torch.float64)
    ranked: tuple[int, ...] = ()
    if random:
        drawing = [rows[index] for index in random]
        scaled = within_sigma(select(logits, random).float(), drawing) - select(highest, random).float().unsqueeze(-1)
        scaled /= column_of([row.temperature for row in drawing], scaled)
        numbers = to_device([noise[index] for index in random], torch.float64, logits.device)
        at_unranked = [at for at, row in enumerate(drawing) if not row.is_ranked]
        if at_unranked:
            picked = draw_unranked(
                select(scaled, at_unranked), [drawing[at] for at in at_unranked], select(numbers, at_unranked)
            )
            _put(tokens, [random[at] for at in at_unranked], picked)
        at_ranked = [at for at, row in enumerate(drawing) if row.is_ranked]
        scaled, numbers = select(scaled, at_ranked), select(numbers, at_ranked)
        ranked = tuple([random[at] for at in at_ranked])
        if at_ranked:
            ordered = [drawing[at] for at in at_ranked]
            count = max(max(row.num_candidates, row.top_k + 1) for row in ordered)
            picked, enough = _sample_among(scaled, ordered, numbers, count)
            _put(tokens, ranked, picked)
            _put(final, ranked, enough)
    return SampledTokens(tokens, highest.isfinite(), final, scaled, numbers, ranked)


@torch.inference_mode()
def resample(sampled: SampledTokens, rows: Sequence[SamplingRow], indices: Sequence[int]) -> Tensor:
    """Samples rows that were not final again, with the whole vocabulary ranked.

    Also raises ``num_candidates`` of these rows, so that later steps rank more tokens.

    Returns:
        int64 ``[len(indices)]`` token ids.
    """
    chosen = [rows[index] for index in indices]
    at = [sampled.ranked.index(index) for index in indices]
    scaled = select(sampled.scaled, at)
    picked, _exact = _sample_among(scaled, chosen, select(sampled.noise, at), scaled.shape[-1])
    for row in chosen:
        row.num_candidates *= CANDIDATES_GROWTH
    return picked


def _sample_among(scaled: Tensor, rows: Sequence[SamplingRow], noise: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, ids, kept, exact = rank(scaled, rows, count)
    values, ids = by_id(values, ids, kept)
    return draw_ranked(values, ids, rows, noise), exact


def _put(target: Tensor, indices: Sequence[int], values: Tensor) -> None:
    target[to_device(indices, torch.int64, target.device)] = values
