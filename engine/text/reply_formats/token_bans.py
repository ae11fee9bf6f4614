"""Bans that depend on whether a reply is thinking: the end of its budget, and bans for the answer alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.text.detokenizer import Detokenizer
from engine.text.reply_formats.parser import ReplyParser

_NONE = np.empty(0, dtype=np.int64)


class _Ban(Protocol):
    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]: ...


class ThinkingTracker:
    """Follows one reply's tokens and knows whether its thinking is open. Each ban needs its own.

    Args:
        detokenizer: pushes the reply's text to the parser.
        parser: the detokenizer's.
    """

    def __init__(self, detokenizer: Detokenizer, parser: ReplyParser) -> None:
        self._detokenizer = detokenizer
        self._parser = parser
        self._num_seen = 0
        self.num_thinking = 0  #: tokens of the reply after which thinking was open

    @property
    def is_thinking(self) -> bool:
        return self._parser.is_thinking

    @property
    def is_within_character(self) -> bool:
        """Whether the tokens end within a character, which nothing but its other bytes can follow as text."""
        return self._detokenizer.is_within_character

    def follow(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Reads the tokens that were added. ``token_ids``: prompt and reply; fewer than before change nothing."""
        for index in range(max(self._num_seen, num_prompt_tokens), len(token_ids)):
            self._detokenizer.push(token_ids[index : index + 1])
            self.num_thinking += self._parser.is_thinking
        self._num_seen = max(self._num_seen, len(token_ids))


class ThinkingBudget:
    """Ends thinking after a number of tokens: bans all tokens but the next one of the closing tag.

    Args:
        tracker: follows the reply.
        max_tokens: tokens of thinking before it is closed.
        closing: token ids that close it.
        vocab_size: number of token ids that the model knows.
    """

    def __init__(self, tracker: ThinkingTracker, max_tokens: int, closing: Sequence[int], vocab_size: int) -> None:
        self._tracker = tracker
        self._max_tokens = max_tokens
        self._closing = tuple(closing)
        self._vocab_size = vocab_size
        self._closes_at: int | None = None  # index in the reply of the closing tag's first token

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Returns the token ids that may not follow."""
        self._tracker.follow(token_ids, num_prompt_tokens)
        if self._closes_at is None:
            if not self._tracker.is_thinking or self._tracker.num_thinking < self._max_tokens:
                return _NONE
            if self._tracker.is_within_character:  # a grammar allows nothing but the character's end
                return _NONE
            self._closes_at = len(token_ids)
        index = len(token_ids) - self._closes_at
        if index >= len(self._closing):
            return _NONE
        return np.delete(np.arange(self._vocab_size), self._closing[index])


class AnswerBan:
    """Applies a ban to the answer alone, not to the thinking before it.

    Args:
        tracker: follows the reply.
        make_ban: makes the ban, given the number of tokens before the answer.
    """

    def __init__(self, tracker: ThinkingTracker, make_ban: Callable[[int], _Ban]) -> None:
        self._tracker = tracker
        self._make_ban = make_ban
        self._ban: _Ban | None = None
        self._start = 0  # of the answer

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Returns the token ids that may not follow."""
        self._tracker.follow(token_ids, num_prompt_tokens)
        if self._tracker.is_thinking:
            self._ban = None
            return _NONE
        if self._ban is None:
            self._start = len(token_ids)
            self._ban = self._make_ban(self._start - num_prompt_tokens)
        return self._ban.banned(token_ids, self._start)
