"""Logits to tokens for a mixed batch, each row by its own parameters.

The order is the one transformers and vLLM share: logit bias; repetition, presence and frequency penalty; bans
(of ending before ``min_tokens``, of words); temperature; top-k; top-p; min-p; typical-p. A greedy row takes the
likeliest token after the bans.

A token is drawn by inverting the cumulative distribution, in the order of the vocabulary, at one uniform number
per row. That number depends on the row's seed and position alone, so the noise of a reply is the same whatever
else runs in the batch, after a preemption, and on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import EveryTokenBannedError, LogitsError
from engine.penalties import TokenCounts
from engine.sampling_params import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by less only loses precision (vLLM draws the line here too)."""

_FIRST_CANDIDATES = 256
_MORE_CANDIDATES = 8
_NO_TOKENS = np.empty(0, dtype=np.int64)


class TokenBan(Protocol):
    """Something that keeps tokens out of one reply."""

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Token ids that may not follow. ``token_ids``: prompt and reply, which only grow from call to call."""
        ...


class SamplingRow:
    """What the sampler needs of one request, made once when the request arrives.

    Args:
        request_id: named in errors.
        params: every field the sampler reads is set (see ``SamplingParams.with_defaults``).
        seed: the noise's, 0 to 2**63 - 1.
        token_ids: prompt, then reply. The row keeps this list and reads it anew at each step: it must be the
            request's own, growing one.
        num_prompt_tokens: where the reply begins in ``token_ids``.
        stop_token_ids: tokens that end the reply; banned while it is shorter than ``params.min_tokens``.
        bans: what else keeps tokens out of this reply; the row's own, because they follow its text.
    """

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        *,
        seed: int,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
        stop_token_ids: frozenset[int] = frozenset(),
        bans: Sequence[TokenBan] = (),
    ) -> None:
        self.request_id = request_id
        self.seed = seed
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.min_tokens = params.min_tokens
        self._stop_ids = np.array(sorted(stop_token_ids), dtype=np.int64)
        self._bans = tuple(bans)
        self.temperature = _resolved(params.temperature, "temperature")
        self.is_greedy = self.temperature < GREEDY_BELOW
        self.top_k = int(_resolved(params.top_k, "top_k"))
        self.top_p = _resolved(params.top_p, "top_p")
        self.min_p = _resolved(params.min_p, "min_p")
        self.typical_p = _resolved(params.typical_p, "typical_p")
        self.repetition_penalty = _resolved(params.repetition_penalty, "repetition_penalty")
        self.presence_penalty = _resolved(params.presence_penalty, "presence_penalty")
        self.frequency_penalty = _resolved(params.frequency_penalty, "frequency_penalty")
        bias = params.logit_bias or {}
        self.bias_ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self.bias_values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
        self.is_ranked = self.top_k > 0 or self.top_p < 1  #: its filters need the likeliest tokens in order
        penalized = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        self._counts = TokenCounts() if penalized else None

    @property
    def position(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def banned(self) -> NDArray[np.int64]:
        """Token ids that may not come next."""
        bans_the_end = self.position < self.min_tokens
        if not self._bans:
            return self._stop_ids if bans_the_end else _NO_TOKENS
        parts = [ban.banned(self.token_ids, self.num_prompt_tokens) for ban in self._bans]
        return np.concatenate([*parts, self._stop_ids] if bans_the_end else parts)

    @property
    def counts(self) -> TokenCounts | None:
        """Which tokens occurred, up to date; None when nothing is penalized."""
        if self._counts is not None:
            self._counts.update(self.token_ids, self.num_prompt_tokens)
        return self._counts


class Sampler:
    """Stateless: everything that lasts lives in the rows."""

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
        """Choose the next token of each row.

        Args:
            logits: ``[len(rows), vocab_size]``, any floating dtype, computed with in fp32; left unchanged.
            rows: one for each row of ``logits``.

        Returns:
            ``len(rows)`` token ids.

        Raises:
            LogitsError: a row holds NaN or +inf, or nothing but -inf; names the requests.
            EveryTokenBannedError: all that a row may take is banned; names the requests.
        """
        if logits.shape[0] != len(rows):
            raise ValueError(f"{len(rows)} rows need as many rows of logits (got {logits.shape[0]})")
        if not rows:
            return []
        scores = _adjust(logits, rows)
        highest, likeliest = scores.max(dim=-1)
        _refuse_unusable(highest, logits, rows)
        tokens: list[int] = likeliest.tolist()
        random = [index for index, row in enumerate(rows) if not row.is_greedy]
        if random:
            chosen = _draw(_select(scores, random), _select(highest, random), [rows[index] for index in random])
            for index, token in zip(random, chosen, strict=True):
                tokens[index] = token
        return tokens


def uniform(seed: int, position: int) -> float:
    """The noise of one draw, in [0, 1), from (seed, position) alone.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) used as a
    counter-based generator: the seed is mixed once, then element ``position`` of the stream that starts there is
    computed directly. The upper 53 bits make the number.
    """
    return (_mix64(_mix64(seed) + (position + 1) * 0x9E3779B97F4A7C15) >> 11) * 2.0**-53


def _mix64(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


# -- before the temperature -------------------------------------------------------------------------------


def _adjust(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Bias, penalties and bans. Returns ``logits`` itself, in its own dtype, when nobody asks for any."""
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
    """Touches only the tokens that occurred: costs what the texts are long, not what the vocabulary is large."""
    at = _positions([index for index, _ in penalized], [counts.ids for _, counts in penalized], scores)
    in_reply = _column([counts.in_reply for _, counts in penalized], scores)
    lengths = torch.tensor([counts.ids.size for _, counts in penalized], device=scores.device)

    def spread(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=scores.device).repeat_interleave(lengths)

    repetition = spread([rows[index].repetition_penalty for index, _ in penalized])
    presence = spread([rows[index].presence_penalty for index, _ in penalized])
    frequency = spread([rows[index].frequency_penalty for index, _ in penalized])
    values = scores[at]
    values = torch.where(values < 0, values * repetition, values / repetition)
    scores[at] = values - frequency * in_reply - presence * (in_reply > 0)


def _positions(indices: Sequence[int], ids: Sequence[NDArray[Any]], scores: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column indices of ``ids[i]`` in row ``indices[i]``."""
    row = np.repeat(np.asarray(indices, dtype=np.int64), [part.size for part in ids])
    return torch.from_numpy(row).to(scores.device), torch.from_numpy(np.concatenate(ids)).to(scores.device)


def _column(parts: Sequence[NDArray[Any]], scores: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(scores.device, torch.float32)


def _refuse_unusable(highest: Tensor, logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """The maximum of a row is finite if and only if the row has a token to take and neither NaN nor +inf."""
    usable = torch.isfinite(highest)
    if not bool(usable.all()):
        unusable = [index for index, good in enumerate(usable.tolist()) if not good]
        defective = [index for index in unusable if not math.isfinite(float(logits[index].max()))]
        broken = tuple(rows[index].request_id for index in defective or unusable)
        if not defective:
            raise EveryTokenBannedError(
                f"No token can come next in {', '.join(broken)}: all are banned, by forbidden words, bad words or "
                "min_tokens. Forbid less.",
                request_ids=broken,
            )
        raise LogitsError(
            f"The model produced no usable scores for {', '.join(broken)} (NaN or infinity). "
            "The weights may be damaged, or the number format too small for this model: try ENGINE_DTYPE=float32.",
            request_ids=broken,
        )


# -- from the temperature on ------------------------------------------------------------------------------


def _draw(scores: Tensor, highest: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """One token for each row.

    Args:
        scores: ``[n, vocab_size]``.
        highest: ``[n]``, the maximum of each row.
        rows: ``n`` rows, none greedy.
    """
    # With the likeliest token at 0, no exponential overflows, however low the temperature.
    scaled = (
        scores.float().sub(highest.float().unsqueeze(-1)).div_(_column_of([row.temperature for row in rows], scores))
    )
    noise = torch.tensor([uniform(row.seed, row.position) for row in rows], dtype=torch.float64, device=scores.device)
    ranked = [index for index, row in enumerate(rows) if row.is_ranked]
    unranked = [index for index, row in enumerate(rows) if not row.is_ranked]
    tokens = [0] * len(rows)
    if ranked:
        values, ids = _survivors(_select(scaled, ranked), [rows[index] for index in ranked])
        values = _keep_typical(values, [rows[index] for index in ranked])
        picked = ids.gather(-1, _invert(values, _select(noise, ranked)))
        _put(tokens, ranked, picked)
    if unranked:
        values = _select(scaled, unranked)
        if any(rows[index].min_p > 0 for index in unranked):
            values = values.masked_fill(values < _floor([rows[index] for index in unranked], values), -math.inf)
        values = _keep_typical(values, [rows[index] for index in unranked])
        _put(tokens, unranked, _invert(values, _select(noise, unranked)))
    return tokens


def _survivors(scaled: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    """What top-k, top-p and min-p leave of ``scaled`` ``[n, vocab_size]``, in the order of the vocabulary.

    All three keep the tokens at or above some score, so the survivors are found without sorting the vocabulary:
    a few hundred of the likeliest tokens are ranked, and more only while some row has not met its threshold.

    Returns:
        scores ``[n, c]``, -inf where a row has fewer than ``c`` survivors, and their token ids ``[n, c]``.
    """
    vocab_size = scaled.shape[-1]
    # Top-p without top-k is a share of the whole vocabulary's mass.
    whole = scaled.exp().sum(-1, keepdim=True, dtype=torch.float64) if any(not row.top_k for row in rows) else None
    count = max(_FIRST_CANDIDATES, *(row.top_k + 1 for row in rows))
    while True:
        count = min(count, vocab_size)
        values, ids = scaled.topk(count, dim=-1)
        threshold = _threshold(values, whole, rows)
        if count == vocab_size or bool((values[:, -1:] < threshold).all()):
            break
        count *= _MORE_CANDIDATES
    kept = values >= threshold
    widest = int(kept.sum(-1).max())
    values = values.masked_fill(~kept, -math.inf)[:, :widest]
    # Equal scores leave topk in any order; sorted by id, a draw does not depend on how many tokens were ranked.
    ids, order = ids[:, :widest].sort(dim=-1)
    return values.gather(-1, order), ids


def _threshold(values: Tensor, whole: Tensor | None, rows: Sequence[SamplingRow]) -> Tensor:
    """The lowest score that each row keeps, ``[n, 1]``; final where some candidate lies below it.

    Args:
        values: ``[n, c]`` scaled scores of the ``c`` likeliest tokens, highest first.
        whole: ``[n, 1]`` float64 mass of the vocabulary; may be None when every row has a top-k.
    """
    count = values.shape[-1]
    has_top_k = torch.tensor([[row.top_k > 0] for row in rows], device=values.device)
    last = torch.tensor([[min(row.top_k or count, count) - 1] for row in rows], device=values.device)
    lowest = torch.where(has_top_k, values.gather(-1, last), -math.inf)
    if any(row.top_p < 1 for row in rows):
        top_p = _column_of([row.top_p for row in rows], values).double()
        mass = values.double().masked_fill_(values < lowest, -math.inf).exp_()
        total = mass.sum(-1, keepdim=True)
        if whole is not None:
            total = torch.where(has_top_k, total, whole)
        # A token stays when those likelier than it do not yet hold the share: the one that completes it stays.
        before = (mass.cumsum(-1) - mass) / total
        last = (before < top_p).sum(-1, keepdim=True).clamp_(min=1) - 1
        lowest = torch.where(top_p < 1, torch.maximum(lowest, values.gather(-1, last)), lowest)
    return torch.maximum(lowest, _floor(rows, values))


def _keep_typical(scaled: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Locally typical sampling: -inf for what is much likelier or much less likely than expected.

    Meister, Pimentel, Wiher and Cotterell, "Locally Typical Sampling" (TACL 2023): tokens are taken in the order of
    ``|-log p - H|``, with ``H`` the entropy of the distribution, until they have the mass ``typical_p``; the token
    that completes it stays. As in transformers, the distribution is the one that the filters before have left.

    Args:
        scaled: ``[n, c]``, -inf where a token has been dropped; left unchanged.
        rows: ``n`` rows; those with ``typical_p`` 1 keep everything and cost nothing.
    """
    chosen = [index for index, row in enumerate(rows) if row.typical_p < 1]
    if not chosen:
        return scaled
    part = scaled[chosen]
    log_p = part.double().log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p).nansum(-1, keepdim=True)  # 0 log 0 is 0
    surprise = (log_p + entropy).abs()
    ordered, order = surprise.sort(dim=-1)
    typical_p = _column_of([rows[index].typical_p for index in chosen], scaled).double()
    last = (p.gather(-1, order).cumsum(-1) < typical_p).sum(-1, keepdim=True).clamp_(max=scaled.shape[-1] - 1)
    part = part.masked_fill(surprise > ordered.gather(-1, last), -math.inf)
    return scaled.index_copy(0, torch.tensor(chosen, device=scaled.device), part)


def _invert(scores: Tensor, noise: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes ``noise`` ``[n]``: indices ``[n, 1]`` into ``scores``."""
    cumulative = scores.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Rounding must not carry the target to the very end, beyond the last token that has any mass.
    target = torch.minimum(noise.unsqueeze(-1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)


def _floor(rows: Sequence[SamplingRow], like: Tensor) -> Tensor:
    """The lowest scaled score min-p keeps, ``[n, 1]``."""
    return _column_of([math.log(row.min_p) if row.min_p > 0 else -math.inf for row in rows], like)


def _column_of(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).unsqueeze(-1)


def _select(tensor: Tensor, indices: Sequence[int]) -> Tensor:
    return tensor if len(indices) == tensor.shape[0] else tensor[list(indices)]


def _put(tokens: list[int], indices: Sequence[int], picked: Tensor) -> None:
    for index, token in zip(indices, picked.squeeze(-1).tolist(), strict=True):
        tokens[index] = token


def _resolved(value: float | None, name: str) -> float:
    if value is None:
        raise ValueError(f"{name} is not set: the sampler needs params completed by SamplingParams.with_defaults")
    return value
