"""Who is asking. The guard decides once per request; everybody else reads the answer here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import HTTPConnection

from app.domain.roles import UserRole

_KEY = "identity"


@dataclass(frozen=True, slots=True)
class Identity:
    """A person, and by which door they came: a session of theirs, or one of their API keys."""

    user_id: str
    role: UserRole
    session_id: str | None = None
    key_id: str | None = None
    scopes: frozenset[str] = frozenset()  #: of the key


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:
        """The person behind an ASGI scope; None when nobody is known by it.

        Raises:
            StorageUnavailable: that cannot be found out for now.
        """

    @property
    def key_hint(self) -> str:
        """Where a program's API key comes from, as a sentence."""

    def may_read_metrics(self, scope: Mapping[str, Any]) -> bool:
        """Whether the request may read the process's numbers, which are nobody's."""

    def watch(self, identity: Identity) -> AbstractContextManager[asyncio.Event | None]:
        """Around a long answer: an event that is set when the identity holds no more; None where it always does."""


class LocalUser:
    """Without accounts: whoever reaches this server is the one person at this computer, and may do everything."""

    def __init__(self, user_id: str) -> None:
        self._identity = Identity(user_id, UserRole.ADMIN)

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:  # noqa: ARG002 - whoever asks
        return self._identity

    @property
    def key_hint(self) -> str:
        return "No key is needed here."

    def may_read_metrics(self, scope: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return True

    def watch(self, identity: Identity) -> AbstractContextManager[asyncio.Event | None]:  # noqa: ARG002
        return nullcontext()


def set_identity(scope: MutableMapping[str, Any], identity: Identity) -> None:
    """Note on an ASGI scope who the caller is. Only the guard calls this."""
    scope.setdefault("state", {})[_KEY] = identity


def identity_of(request: object) -> Identity:
    """Who is behind a FastAPI request or a ``gr.Request``.

    Raises:
        RuntimeError: the request did not come through the guard, or its route is open to everybody (a mistake of
            ours, never the caller's).
    """
    connection = request if isinstance(request, HTTPConnection) else getattr(request, "request", None)
    if isinstance(connection, HTTPConnection):
        identity = connection.scope.get("state", {}).get(_KEY)
        if isinstance(identity, Identity):
            return identity
    raise RuntimeError("This request did not pass the guard, so nobody knows whose it is.")


def user_id_of(request: object) -> str:
    """The id of that person. Raises as :func:`identity_of`."""
    return identity_of(request).user_id
