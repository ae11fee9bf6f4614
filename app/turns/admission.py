"""Admission control for replies: rate and concurrency limits before a reply, token accounting after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from engine import Caller, Delta


def caller_of(user_id: str, *, accounts: bool, cache_salt: str = "") -> Caller | None:
    """Maps a user to the engine's ``Caller``; None without accounts, where all requests are one user's.

    Args:
        cache_salt: the ``cache_salt`` of the request.
    """
    return Caller(user_id if accounts else "", cache_salt) if accounts or cache_salt else None


class Admission(Protocol):
    """Admits a reply before it starts and counts its tokens after it ends."""

    def admit(
        self, user_id: str, replies: int = 1, *, is_message: bool = True, is_comparison: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """Wraps the start of ``replies`` replies (one by default).

        Args:
            is_message: counts towards the limit of messages, as all does that is written for the user.
            is_comparison: each of the replies counts as a message; otherwise they count as one together.

        Raises (on entering):
            TooManyRequests: the user has reached a limit on replies, now or over the day.
        """

    def record_tokens(self, user_id: str, tokens: int) -> None:
        """Counts the tokens, prompt and completion, of a reply that has ended."""

    def meter(
        self, user_id: str, deltas: AsyncIterator[Delta], replies: int = 1, *, is_message: bool = True
    ) -> AsyncIterator[Delta]:
        """Passes on the deltas of unsaved replies: admits before the first delta, counts after the last.

        Args:
            is_message: as of :meth:`admit`.

        Raises (on the first ``anext``):
            TooManyRequests: as :meth:`admit`.
        """


class UnlimitedAdmission:
    """Admits everything. Used without accounts, where the only user is the owner of this computer."""

    def admit(
        self,
        user_id: str,  # noqa: ARG002 - one user
        replies: int = 1,  # noqa: ARG002
        *,
        is_message: bool = True,  # noqa: ARG002
        is_comparison: bool = False,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def record_tokens(self, user_id: str, tokens: int) -> None:
        """Does nothing: there is no limit to count towards."""

    def meter(
        self,
        user_id: str,  # noqa: ARG002
        deltas: AsyncIterator[Delta],
        replies: int = 1,  # noqa: ARG002
        *,
        is_message: bool = True,  # noqa: ARG002
    ) -> AsyncIterator[Delta]:
        return deltas
