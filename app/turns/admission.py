"""Whether somebody may have a reply now, and what their replies took."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from engine import Caller, Delta


def caller_of(user_id: str, *, accounts: bool, cache_salt: str = "") -> Caller | None:
    """The user as the engine knows one; None without accounts, where everything is one user's.

    Args:
        cache_salt: as the request gave it.
    """
    return Caller(user_id if accounts else "", cache_salt) if accounts or cache_salt else None


class Admission(Protocol):
    """Asked before each reply, told after each."""

    def admit(self, user_id: str, replies: int = 1) -> AbstractAsyncContextManager[None]:
        """Around the start of a reply, or of so many.

        Raises (on entering):
            TooManyRequests: they have had, or have at the moment, as much as anybody may.
        """

    def record_tokens(self, user_id: str, tokens: int) -> None:
        """A reply has ended that took so many tokens, read and written."""

    def meter(self, user_id: str, deltas: AsyncIterator[Delta], replies: int = 1) -> AsyncIterator[Delta]:
        """The same deltas, of replies that are saved nowhere: admitted before the first, counted after the last.

        Raises (on the first ``anext``):
            TooManyRequests: as :meth:`admit`.
        """


class UnlimitedAdmission:
    """Without accounts: the one person at this computer may have what it can give."""

    def admit(self, user_id: str, replies: int = 1) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - one user
        return nullcontext()

    def record_tokens(self, user_id: str, tokens: int) -> None:
        """Nobody counts."""

    def meter(self, user_id: str, deltas: AsyncIterator[Delta], replies: int = 1) -> AsyncIterator[Delta]:  # noqa: ARG002
        return deltas
