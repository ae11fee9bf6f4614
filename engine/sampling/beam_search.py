"""Beam search: which beginnings of a reply to continue, and when the best replies are found.

Equal to ``_beam_search`` of transformers' ``GenerationMixin``, with its rules for when to stop, for one prompt.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from operator import attrgetter
from typing import NamedTuple

from engine.beam_search_params import BeamSearchParams
from engine.sampling.logprobs import Scores

Candidates = Sequence[tuple[int, float]]
"""The likeliest next tokens of a beam, as token ids with log-probabilities, likeliest first."""


class Choice(NamedTuple):
    """A beam of the next step: a token after one of the present beams."""

    parent: int
    token: int


@dataclass(frozen=True, slots=True)
class _Token:
    """The last token of a sequence, with what was chosen from. Beams share their beginnings."""

    previous: _Token | None
    candidates: Candidates
    rank: int  #: index in the candidates


@dataclass(frozen=True, slots=True)
class Beam:
    """A sequence of tokens with its score.

    Args:
        last: its last token; None before the first.
        score: sum of the log-probabilities; of an ended sequence divided by its penalized length.
    """

    last: _Token | None
    score: float

    def scores(self, num_top: int = 0) -> list[Scores]:
        """Returns each token with its log-probability and rank, and ``num_top`` of the likeliest ones at its place."""
        made = []
        for token in _backwards(self.last):
            token_id, logprob = token.candidates[token.rank]
            made.append(Scores(token_id, logprob, token.rank + 1, tuple(token.candidates[:num_top])))
        return made[::-1]


def _backwards(token: _Token | None) -> Iterator[_Token]:
    while token is not None:
        yield token
        token = token.previous


class _Continuation(NamedTuple):
    score: float
    parent: int
    rank: int
    token: int


def _continuations_of(parent: int, beam: Beam, candidates: Candidates) -> Iterator[_Continuation]:
    for rank, (token, logprob) in enumerate(candidates):
        yield _Continuation(beam.score + logprob, parent, rank, token)


class BeamSearch:
    """The state of one search, which begins with a single, empty beam.

    Args:
        params: width, length penalty, and when to stop.
        max_tokens: maximum tokens of a sequence.
        end_token_ids: tokens that end a sequence.
    """

    def __init__(self, params: BeamSearchParams, *, max_tokens: int, end_token_ids: Collection[int]) -> None:
        self._params = params
        self._max_tokens = max_tokens
        self._ends = frozenset(end_token_ids)
        self.num_tokens = 0  #: of each beam
        self._beams = [Beam(None, 0.0)]
        self._ended: list[Beam] = []  # the best first, ``width`` of them at most

    @property
    def num_candidates(self) -> int:
        """How many of the likeliest tokens of each beam to consider: enough for ``width`` that end none."""
        return max(2, 1 + len(self._ends)) * self._params.width

    @property
    def num_beams(self) -> int:
        """Number of beams whose candidates the next step needs."""
        return len(self._beams)

    def advance(self, candidates: Sequence[Candidates]) -> list[Choice] | None:
        """Takes a step, and returns the beams to continue; None when the search is over. It takes no step after that.

        Args:
            candidates: :attr:`num_candidates` for each beam, in order.
        """
        width, length = self._params.width, self.num_tokens + 1
        best = self._continuations(candidates)
        is_over = [self._ends_with(each.token, length) for each in best]
        self._note_ended(best[:width], is_over, candidates)
        going_on = [each for each, over in zip(best, is_over, strict=True) if not over][:width]
        beams = [self._beams[each.parent] for each in going_on]
        self._beams = [
            Beam(_Token(beam.last, candidates[each.parent], each.rank), each.score)
            for beam, each in zip(beams, going_on, strict=True)
        ]
        self.num_tokens = length
        if not going_on or not self._goes_on():
            return None
        return [Choice(each.parent, each.token) for each in going_on]

    def replies(self, number: int) -> list[Beam]:
        """Returns the best sequences, best first: those that have ended, then those that go on."""
        going_on = [Beam(beam.last, self._penalized(beam.score, max(self.num_tokens, 1))) for beam in self._beams]
        return [*self._ended, *going_on][:number]

    def _continuations(self, candidates: Sequence[Candidates]) -> list[_Continuation]:
        """Returns the likeliest continuations of all beams, likeliest first; those of the first beam in a tie."""
        of_each = map(_continuations_of, count(), self._beams, candidates)
        return list(islice(heapq.merge(*of_each, key=attrgetter("score"), reverse=True), self.num_candidates))

    def _ends_with(self, token: int, length: int) -> bool:
        return token in self._ends or length >= self._max_tokens

    def _note_ended(
        self, best: Sequence[_Continuation], is_over: Sequence[bool], candidates: Sequence[Candidates]
    ) -> None:
        """Takes ended sequences among the ``width`` likeliest ones; the others were considered only to continue."""
        length = self.num_tokens + 1
        ended = [
            Beam(
                _Token(self._beams[each.parent].last, candidates[each.parent], each.rank),
                self._penalized(each.score, length),
            )
            for each, over in zip(best, is_over, strict=False)
            if over
        ]
        ranked = sorted([*self._ended, *ended], key=attrgetter("score"), reverse=True)
        self._ended = ranked[: self._params.width]

    def _goes_on(self) -> bool:
        if len(self._ended) < self._params.width:
            return True
        if self._params.early_stopping is True:
            return False
        # The best score that a beam could reach, if it lost no more on the way.
        is_longer_better = self._params.early_stopping == "never" and self._params.length_penalty > 0
        length = self._max_tokens if is_longer_better else self.num_tokens
        return self._penalized(self._beams[0].score, length) > self._ended[-1].score

    def _penalized(self, score: float, length: int) -> float:
        return score / math.pow(length, self._params.length_penalty)
