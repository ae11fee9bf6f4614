"""Whether somebody may have a reply now, and what their replies took."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from engine import Delta


class Admission(Protocol):
    """Asked before each reply, told after each."""

    def sending(self, user_id: str) -> AbstractAsyncContextManager[None]:
        """Around the start of a reply.

        Raises (on entering):
            TooManyRequests: they have had, or have at the moment, as much as anybody may.
        """

    def spent(self, user_id: str, tokens: int) -> None:
        """A reply has ended that took so many tokens, read and written."""

    def metered(self, user_id: str, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        """The same deltas, of a reply that is saved nowhere: admitted before the first, counted after the last.

        Raises (on the first ``anext``):
            TooManyRequests: as :meth:`sending`.
        """


class Unlimited:
    """Without accounts: the one person at this computer may have what it can give."""

    def sending(self, user_id: str) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - there is one
        return nullcontext()

    def spent(self, user_id: str, tokens: int) -> None:
        """Nobody counts."""

    def metered(self, user_id: str, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:  # noqa: ARG002
        return deltas
