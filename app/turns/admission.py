"""Admission control for replies: rate and concurrency limits before a reply, token accounting after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

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
        self,
        user_id: str,
        replies: int = 1,
        *,
        is_message: bool = True,
        is_comparison: bool = False,
        request: asyncio.Future[Any] | None = None,
        may_count_later: bool = False,
    ) -> AbstractAsyncContextManager[int | None]:
        """Wraps the start of ``replies`` replies (one by default).

        Yields how many of the user's replies may be running in the database when these are written to it; None: any
        number, since they were counted.

        Args:
            is_message: counts towards the limit of messages, as all does that is written for the user.
            is_comparison: each of the replies counts as a message; otherwise they count as one together.
            request: what is to be answered, which is read meanwhile and done on entering. One that fails is no message.
            may_count_later: the caller lets the database count running replies. Otherwise None is yielded.

        Raises (on entering):
            TooManyRequests: the user has reached a limit on replies, now or over the day.
            Exception: that of the request.
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

    @asynccontextmanager
    async def admit(
        self,
        user_id: str,  # noqa: ARG002 - one user
        replies: int = 1,  # noqa: ARG002
        *,
        is_message: bool = True,  # noqa: ARG002
        is_comparison: bool = False,  # noqa: ARG002
        request: asyncio.Future[Any] | None = None,
        may_count_later: bool = False,  # noqa: ARG002
    ) -> AsyncIterator[int | None]:
        if request is not None:
            await request
        yield None

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
