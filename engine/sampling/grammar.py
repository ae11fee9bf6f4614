"""Holds one reply to a compiled grammar: the tokens that may come next, and whether the grammar is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidRequestError, LogitsError
from engine.text.reply_formats.token_bans import ThinkingTracker

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher


@dataclass(frozen=True, slots=True)
class TokenMask:
    """The tokens that may follow."""

    bits: NDArray[np.uint8]  #: a bit for each token id, lowest first, set if it may follow; whole words of 32 bits
    vocab_size: int  #: number of the model's token ids


def unset_bits(mask: TokenMask) -> NDArray[np.int64]:
    """Returns the token ids that may not follow."""
    return np.flatnonzero(~allowed_tokens(mask))


def allowed_tokens(mask: TokenMask) -> NDArray[np.bool_]:
    """Returns for each token id whether it may follow: ``[vocab_size]``."""
    return np.unpackbits(mask.bits, count=mask.vocab_size, bitorder="little").view(np.bool_)


class ReplyGrammar(Protocol):
    """Holds one reply to a form; also a :class:`engine.sampling.sampler.TokenBan`."""

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Returns the token ids that may not follow."""
        ...

    def is_complete(self, token_ids: Sequence[int], num_prompt_tokens: int) -> bool:
        """Whether nothing can follow: the reply is complete without an end-of-sequence token."""
        ...

    def forced(self, token_ids: Sequence[int], num_prompt_tokens: int) -> tuple[int, ...]:
        """Returns the tokens that must follow; empty where there is a choice."""
        ...

    def matcher_at(self, token_ids: Sequence[int], num_prompt_tokens: int) -> GrammarMatcher | None:
        """Returns the matcher that says what may follow, advanced to this place; None where no grammar holds yet."""
        ...


class Grammar:
    """A compiled grammar, shared by all replies that are held to it. Safe to use from several threads.

    Args:
        matcher: at the start of the grammar, without error; never advanced.
        vocab_size: number of the model's token ids.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def start(self, request_id: str, partial_reply: Sequence[int] = ()) -> GrammarMatcher:
        """Returns the matcher of one reply.

        Args:
            partial_reply: token ids at the end of the prompt that belong to the reply.

        Raises:
            InvalidRequestError: the partial reply does not fit the grammar.
        """
        matcher = self._matcher.deep_copy()
        if partial_reply and not matcher.consume_tokens(list(partial_reply)):
            raise InvalidRequestError(
                "structured does not allow the unfinished reply as it is. Leave the form out, or start a new reply."
            )
        return GrammarMatcher(matcher, request_id, self._vocab_size)


class GrammarMatcher:
    """The place of one reply in its grammar, a :class:`engine.sampling.sampler.TokenBan`.

    It follows the reply's token ids, also where some of them are dropped again.
    """

    def __init__(self, matcher: LLMatcher, request_id: str, vocab_size: int) -> None:
        self._matcher = matcher
        self._request_id = request_id
        self._vocab_size = vocab_size
        self._consumed: list[int] = []
        self._allowed: TokenMask | None = None  # after the tokens consumed, once computed
        self._forced: tuple[int, ...] = ()
        self._forced_at = -1  # tokens consumed when they were computed

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Returns the token ids that may not follow.

        Raises:
            LogitsError: the grammar became too complex to follow; names the request.
        """
        return unset_bits(self.matcher_at(token_ids, num_prompt_tokens).allowed())

    def allowed(self) -> TokenMask:
        """Returns the tokens that may follow those that it was advanced to.

        Raises:
            LogitsError: the grammar became too complex to follow; names the request.
        """
        if self._allowed is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            self._check()
            self._allowed = TokenMask(bits, self._vocab_size)
        return self._allowed

    def matcher_at(self, token_ids: Sequence[int], num_prompt_tokens: int) -> GrammarMatcher:
        """Returns itself, advanced to this place.

        Raises:
            LogitsError: the grammar became too complex to follow; names the request.
        """
        self._follow(token_ids, num_prompt_tokens)
        return self

    def is_complete(self, token_ids: Sequence[int], num_prompt_tokens: int) -> bool:
        """Whether nothing can follow: the reply is complete without an end-of-sequence token."""
        if len(token_ids) - num_prompt_tokens < len(self._consumed):
            return False  # it has gone on from there, so something could follow
        self._follow(token_ids, num_prompt_tokens)
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def forced(self, token_ids: Sequence[int], num_prompt_tokens: int) -> tuple[int, ...]:
        """Returns the tokens that must follow; empty where there is a choice."""
        self._follow(token_ids, num_prompt_tokens)
        if self._forced_at != len(self._consumed):
            self._forced_at, self._forced = len(self._consumed), tuple(self._matcher.compute_ff_tokens())
        return self._forced

    def _follow(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        kept = min(len(self._consumed), len(token_ids) - num_prompt_tokens)
        if kept < len(self._consumed):
            self._allowed = None
            self._matcher.rollback(len(self._consumed) - kept)
            self._forced_at = -1
            del self._consumed[kept:]
        new = list(token_ids[num_prompt_tokens + kept :])
        if new:
            self._allowed = None
            self._matcher.consume_tokens(new)
            self._check()
            self._consumed += new

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().split("\n", 1)[0][:200]
            raise LogitsError(
                f"The structure that {self._request_id} is held to became too complex: {reason}. Simplify it.",
                request_ids=(self._request_id,),
            )


def compute_masks(matchers: Sequence[GrammarMatcher], executor: LLExecutor) -> None:
    """Computes what may follow, for several replies of one model in one call, and keeps it until each goes on.

    Other threads run meanwhile. A matcher that fails keeps nothing: :meth:`GrammarMatcher.allowed` raises its error.
    """
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

    missing = [matcher for matcher in matchers if matcher._allowed is None]
    if not missing:
        return
    masks = allocate_token_bitmask(len(missing), missing[0]._vocab_size)
    fill_next_token_bitmask_par(executor, [(matcher._matcher, at) for at, matcher in enumerate(missing)], masks)
    for matcher, mask in zip(missing, masks, strict=True):
        if not matcher._matcher.is_error():
            matcher._allowed = TokenMask(mask.view(np.uint8), matcher._vocab_size)


class AnswerGrammar:
    """Holds a reply's answer to a grammar, and leaves the thinking before it free.

    Args:
        tracker: follows the reply, and knows when its thinking is closed.
        make_matcher: starts the grammar, at the answer's first token.
        stop_token_ids: end a reply; they may not end it before its answer.
    """

    def __init__(
        self, tracker: ThinkingTracker, make_matcher: Callable[[], GrammarMatcher], stop_token_ids: Iterable[int]
    ) -> None:
        self._tracker = tracker
        self._make_matcher = make_matcher
        self._stop_ids = np.array(sorted(stop_token_ids), dtype=np.int64)
        self._matcher: GrammarMatcher | None = None
        self._start = 0  # of the answer

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Returns the token ids that may not follow."""
        matcher = self._follow(token_ids, num_prompt_tokens)
        return self._stop_ids if matcher is None else matcher.banned(token_ids, self._start)

    def is_complete(self, token_ids: Sequence[int], num_prompt_tokens: int) -> bool:
        """Whether nothing can follow the answer as it is."""
        matcher = self._follow(token_ids, num_prompt_tokens)
        return matcher is not None and matcher.is_complete(token_ids, self._start)

    def forced(self, token_ids: Sequence[int], num_prompt_tokens: int) -> tuple[int, ...]:
        """Returns the tokens that must follow; empty in thinking, and where there is a choice."""
        matcher = self._follow(token_ids, num_prompt_tokens)
        return () if matcher is None else matcher.forced(token_ids, self._start)

    def matcher_at(self, token_ids: Sequence[int], num_prompt_tokens: int) -> GrammarMatcher | None:
        """Returns the answer's matcher, advanced to this place; None in thinking."""
        matcher = self._follow(token_ids, num_prompt_tokens)
        return None if matcher is None else matcher.matcher_at(token_ids, self._start)

    def _follow(self, token_ids: Sequence[int], num_prompt_tokens: int) -> GrammarMatcher | None:
        if self._matcher is None:
            self._tracker.follow(token_ids, num_prompt_tokens)
            if self._tracker.is_thinking:
                return None
            self._start = len(token_ids)
            self._matcher = self._make_matcher()
        return self._matcher
