"""Proposes draft tokens from the request's own text: what followed the last occurrence of its newest tokens.

Prompt lookup decoding (A. Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding). It needs no draft model, and
is right where a reply quotes: edited code, a summarised document, a name, the reply's own repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from engine.scheduling.request import Request
from engine.scheduling.step_plan import Chunk, StepPlan

MIN_MATCH_TOKENS = 2
"""Newest tokens that must match, at least: a single token may be followed by almost anything."""
MAX_MATCH_TOKENS = 4
"""Newest tokens that are compared, at most. The latest place with the longest match is used."""


class PromptLookup:
    """A proposer that searches the prompt and the reply so far."""

    def __init__(self) -> None:
        self._texts: WeakKeyDictionary[Request, _Text] = WeakKeyDictionary()  # removed with their requests

    def propose(self, plan: StepPlan, counts: Sequence[int]) -> list[tuple[int, ...]]:
        return [
            self._draft(chunk.request, count) if count else () for chunk, count in zip(plan.chunks, counts, strict=True)
        ]

    def confirm(self, chunks: Sequence[Chunk]) -> None:
        """Does nothing: ``propose`` reads the request's text."""

    def _draft(self, request: Request, count: int) -> tuple[int, ...]:
        text = self._texts.get(request)
        if text is None:
            text = self._texts[request] = _Text()
        text.follow(request.token_ids)
        return continuation(text.token_ids, count)


class _Text:
    """The token ids of one request as an array that grows with them."""

    def __init__(self) -> None:
        self._ids = np.empty(256, dtype=np.int64)
        self._length = 0

    @property
    def token_ids(self) -> NDArray[np.int64]:
        return self._ids[: self._length]

    def follow(self, token_ids: Sequence[int]) -> None:
        new = token_ids[self._length :]
        length = self._length + len(new)
        if length > self._ids.size:
            self._ids = np.concatenate([self.token_ids, np.empty(length, dtype=np.int64)])
        self._ids[self._length : length] = new
        self._length = length


def continuation(token_ids: NDArray[np.int64], count: int) -> tuple[int, ...]:
    """Returns the tokens that followed the last earlier occurrence of a text's newest tokens.

    Args:
        token_ids: int64 ``[n]``.
        count: how many tokens to return. If fewer have followed, they are repeated: a text that repeats itself is
            assumed to go on doing so.

    Returns:
        ``count`` token ids; none without a match of :data:`MIN_MATCH_TOKENS` tokens.
    """
    if len(token_ids) <= MIN_MATCH_TOKENS:
        return ()
    newest = len(token_ids) - 1
    places = np.flatnonzero(token_ids[:-1] == token_ids[-1])
    for back in range(1, MAX_MATCH_TOKENS):
        matching = places[places >= back]
        matching = matching[token_ids[matching - back] == token_ids[newest - back]]
        if not matching.size:
            if back < MIN_MATCH_TOKENS:
                return ()
            break
        places = matching
    first = int(places[-1]) + 1
    followed = token_ids[first : first + count].tolist()
    return tuple([followed[index % len(followed)] for index in range(count)])
