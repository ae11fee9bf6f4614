"""Counts the tokens of a growing sequence and of its reply, for the penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Counts the distinct tokens of a prompt and its reply incrementally.

    A preempted request keeps its tokens and so its counts; a sequence never gets shorter.
    """

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._in_reply = np.zeros(64, dtype=np.float32)
        self._num_seen = 0

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct token ids ``[m]``, in order of first occurrence."""
        return self._ids[: len(self._slots)]

    @property
    def in_reply(self) -> NDArray[np.float32]:
        """How often each of :attr:`ids` occurs in the reply ``[m]``; 0 for those of the prompt alone."""
        return self._in_reply[: len(self._slots)]

    def update(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Counts the tokens that ``token_ids`` gained since the last call."""
        for position in range(self._num_seen, len(token_ids)):
            slot = self._slots.setdefault(token_ids[position], len(self._slots))
            if slot == self._ids.size:
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._in_reply = np.concatenate([self._in_reply, np.zeros_like(self._in_reply)])
            self._ids[slot] = token_ids[position]
            self._in_reply[slot] += position >= num_prompt_tokens
        self._num_seen = len(token_ids)
