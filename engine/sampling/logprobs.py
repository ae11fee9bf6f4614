"""Computes log-probabilities of the model's raw distribution, before any sampling parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.outputs import Logprob, TokenLogprobs
from engine.text.vocabulary import Vocabulary

_ROWS_AT_ONCE = 32
"""Rows scored at once; bounds the fp32 copy of the logits when many rows are scored, as for a prompt."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One token's score under the model's distribution, and the likeliest tokens at its position."""

    token_id: int
    logprob: float
    rank: int  #: 1 is the likeliest; equally likely tokens share the better rank
    top: tuple[tuple[int, float], ...]  #: token id and log-probability, likeliest first


@torch.inference_mode()
def score(logits: Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[Scores]:
    """Returns log-probabilities (natural logarithm) of given tokens and of the likeliest ones.

    They are the model's own: ``log_softmax`` of the logits in fp32, before bias, penalties, bans, temperature
    and filters, as vLLM's ``raw_logprobs``.

    Args:
        logits: ``[n, vocab_size]``, any floating dtype; left unchanged.
        token_ids: the token of each row.
        counts: how many of the likeliest tokens to return for each row, 0 to ``vocab_size``.
    """
    scored: list[Scores] = []
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        end = start + _ROWS_AT_ONCE
        scored += _score(logits[start:end].float(), token_ids[start:end], counts[start:end])
    return scored


def _score(logits: Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[Scores]:
    total = logits.logsumexp(-1, keepdim=True)
    own = logits.gather(-1, torch.tensor(token_ids, device=logits.device).unsqueeze(-1))
    ranks = (logits > own).sum(-1) + 1
    values, ids = logits.topk(min(max(counts), logits.shape[-1]), dim=-1)
    rows = zip(
        token_ids,
        counts,
        (own - total).squeeze(-1).tolist(),
        ranks.tolist(),
        ids.tolist(),
        (values - total).tolist(),
        strict=True,
    )
    return [
        Scores(token, logprob, rank, tuple(zip(top_ids[:count], top[:count], strict=True)))
        for token, count, logprob, rank, top_ids, top in rows
    ]


def named_scores(vocabulary: Vocabulary, scores: Scores) -> TokenLogprobs:
    """Converts scores to the public type, with the text and the bytes of each token."""
    return TokenLogprobs(
        token=named(vocabulary, scores.token_id, scores.logprob),
        rank=scores.rank,
        top=tuple(named(vocabulary, token_id, logprob) for token_id, logprob in scores.top),
    )


def named(vocabulary: Vocabulary, token_id: int, logprob: float | None) -> Logprob:
    """Returns one token with its text and bytes; the log-probability is None where nothing predicts the token."""
    return Logprob(token_id, logprob, vocabulary.name(token_id), vocabulary.data(token_id))
