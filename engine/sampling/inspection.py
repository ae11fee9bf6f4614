"""Inspects given tokens of a reply: the distribution that the sampler takes each from, and what shaped it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import EngineError
from engine.outputs import Alternative, InspectedRow, Inspection
from engine.sampling import cpu
from engine.sampling.cpu import Floats
from engine.sampling.grammar import allowed_tokens
from engine.sampling.logprobs import named
from engine.sampling.sampler import SamplingRow
from engine.text.vocabulary import Vocabulary

NUM_ALTERNATIVES = 20


class _Filters(NamedTuple):
    """Some of a row's filters, in the order in which they apply; by default neutral."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


class RowInspector:
    """Inspects the tokens of one reply, in their order.

    Args:
        row: the reply's sampling state.
        token_ids: the list that ``row`` reads: prompt and reply up to the next token to inspect. Grows with each one.
        vocabulary: names the alternatives.
        keeps_rows: add the whole row to each inspection.
    """

    def __init__(self, row: SamplingRow, token_ids: list[int], vocabulary: Vocabulary, *, keeps_rows: bool) -> None:
        self._row = row
        self._token_ids = token_ids
        self._vocabulary = vocabulary
        self._keeps_rows = keeps_rows

    @torch.inference_mode()
    def inspect(self, logits: Tensor, tokens: Sequence[int]) -> list[Inspection | None]:
        """Inspects the reply's next tokens. None where the model produced no usable scores.

        Args:
            logits: ``[len(tokens), vocab_size]``, from which each of the tokens was chosen; left unchanged.
        """
        return [self._inspect(logits[index], token) for index, token in enumerate(tokens)]

    def _inspect(self, logits: Tensor, token: int) -> Inspection | None:
        raw: Floats = logits.float().cpu().numpy()
        inspection = None
        highest = float(raw.max())
        if np.isfinite(highest):
            banned = self._banned(len(raw))
            scores = self._adjusted(raw, banned)
            weights = cpu.kept_weights(scores, self._row) if np.isfinite(scores.max()) else np.zeros_like(scores)
            logprobs = _log_shares(weights)
            inspection = Inspection(
                entropy=_entropy(raw, highest),
                kept_logprob=_finite(logprobs[token]),
                num_kept=int(np.count_nonzero(weights)),
                row=self._whole_row(raw, scores, banned, logprobs) if self._keeps_rows else None,
            )
        self._token_ids.append(token)
        return inspection

    def _banned(self, vocab_size: int) -> NDArray[np.bool_]:
        """Returns for each token whether it may not follow: ``[vocab_size]``, empty if all may."""
        if not self._row.adjusts_logits:
            return np.zeros(0, dtype=np.bool_)
        try:
            ids, mask = self._row.bans()
        except EngineError:  # the reply has left the form, which it was not held to when it was written
            self._row.grammar = None
            ids, mask = self._row.bans()
        if mask is None and not ids.size:
            return np.zeros(0, dtype=np.bool_)
        banned = np.zeros(vocab_size, dtype=np.bool_) if mask is None else ~allowed_tokens(mask)
        banned[ids] = True
        return banned

    def _adjusted(self, raw: Floats, banned: NDArray[np.bool_]) -> Floats:
        scores = raw.copy()
        cpu.adjust_row(scores, self._row, np.flatnonzero(banned))
        return scores

    def _whole_row(
        self, raw: Floats, scores: Floats, banned: NDArray[np.bool_], logprobs: NDArray[np.float64]
    ) -> InspectedRow:
        highest = float(raw.max())
        total = highest + float(np.log(np.exp((raw - highest).astype(np.float64)).sum()))
        likeliest = np.argsort(-raw, kind="stable")[:NUM_ALTERNATIVES].tolist()
        causes = self._causes(raw, scores, banned, [each for each in likeliest if not np.isfinite(logprobs[each])])
        counts = self._row.counts
        with np.errstate(over="ignore"):  # far below all others, -inf is as good
            shifted = (raw - highest).astype("<f2")
        return InspectedRow(
            logits=shifted.tobytes(),
            highest=highest,
            counts=()
            if counts is None
            else tuple(zip(counts.ids.tolist(), counts.in_reply.astype(np.int64).tolist(), strict=True)),
            bias=tuple(zip(self._row.bias_ids.tolist(), self._row.bias_values.tolist(), strict=True)),
            banned=np.packbits(banned, bitorder="little").tobytes(),
            alternatives=tuple(
                Alternative(
                    named(self._vocabulary, each, float(raw[each]) - total), _finite(logprobs[each]), causes.get(each)
                )
                for each in likeliest
            ),
        )

    def _causes(self, raw: Floats, scores: Floats, banned: NDArray[np.bool_], removed: Sequence[int]) -> dict[int, str]:
        """Returns which parameter removed each of ``removed``: the first that did, in the sampler's order."""
        row = self._row
        causes: dict[int, str] = {}
        if banned.size:
            by_form = row.grammar is not None and row.matcher is not None
            form = ~allowed_tokens(row.matcher.allowed()) if by_form and row.matcher else np.zeros_like(banned)
            ends = set(row.stop_ids.tolist()) if row.position < row.min_tokens else set()
            for each in removed:
                if form[each]:
                    causes[each] = "structured"
                elif banned[each]:
                    causes[each] = "min_tokens" if each in ends else "forbidden_words"
        if not np.isfinite(scores.max()):
            return causes
        open_ones = [each for each in removed if each not in causes]
        if row.counts is not None or row.bias_ids.size:
            unadjusted = np.where(banned, np.float32(-np.inf), raw) if banned.size else raw
            kept = cpu.kept_weights(unadjusted, row)
            name = "penalties" if row.counts is not None else "logit_bias"
            causes |= {each: name for each in open_ones if kept[each] > 0}
        for name, filters in self._steps():
            kept = cpu.kept_weights(scores, row, filters)
            causes |= {each: name for each in open_ones if each not in causes and not kept[each] > 0}
        return causes

    def _steps(self) -> list[tuple[str, _Filters]]:
        """Returns the row's filters in their order, each with those before it."""
        row = self._row
        if row.is_greedy:
            return [("temperature", _Filters())]
        none = _Filters()
        by_top_k = none._replace(top_k=row.top_k)
        by_top_p = by_top_k._replace(top_p=row.top_p)
        by_min_p = by_top_p._replace(min_p=row.min_p)
        by_typical_p = by_min_p._replace(typical_p=row.typical_p)
        return [
            ("top_n_sigma", none),
            ("top_k", by_top_k),
            ("top_p", by_top_p),
            ("min_p", by_min_p),
            ("typical_p", by_typical_p),
        ]


def _entropy(raw: Floats, highest: float) -> float:
    shifted = (raw - highest).astype(np.float64)
    weights = np.exp(shifted)
    total = float(weights.sum())
    shifted[~np.isfinite(shifted)] = 0  # 0 log 0 is 0
    return float(np.log(total) - (weights * shifted).sum() / total)


def _log_shares(weights: Floats) -> NDArray[np.float64]:
    exact = weights.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares: NDArray[np.float64] = np.log(exact) - np.log(exact.sum())
    return shares


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
