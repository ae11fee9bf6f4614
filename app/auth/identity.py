"""The caller's identity. The guard sets it once per request; handlers read it here."""

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
    """A user, and how the request was authenticated: by a session or by an API key."""

    user_id: str
    role: UserRole
    session_id: str | None = None
    key_id: str | None = None
    scopes: frozenset[str] = frozenset()  #: of the API key


class Authenticator(Protocol):
    """Identifies the user of a request."""

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:
        """Returns the identity behind an ASGI scope; None if it carries no valid credentials.

        Raises:
            StorageUnavailable: the database does not respond.
        """

    @property
    def key_hint(self) -> str:
        """A sentence that says where to get an API key."""

    def may_read_metrics(self, scope: Mapping[str, Any]) -> bool:
        """Whether the request may read ``/metrics``, which belong to no user."""

    def watch(self, identity: Identity) -> AbstractContextManager[asyncio.Event | None]:
        """Context for a long response: yields an event that is set when the identity is revoked, or None."""


class LocalUser:
    """Authentication without accounts: every request is the local user's, who is an admin."""

    def __init__(self, user_id: str) -> None:
        self._identity = Identity(user_id, UserRole.ADMIN)

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:  # noqa: ARG002 - the same for every request
        return self._identity

    @property
    def key_hint(self) -> str:
        return "This server needs no API key."

    def may_read_metrics(self, scope: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return True

    def watch(self, identity: Identity) -> AbstractContextManager[asyncio.Event | None]:  # noqa: ARG002
        return nullcontext()


def set_identity(scope: MutableMapping[str, Any], identity: Identity) -> None:
    """Attaches the caller's identity to an ASGI scope. Only the guard calls this."""
    scope.setdefault("state", {})[_KEY] = identity


def identity_of(request: object) -> Identity:
    """Returns the identity of a FastAPI request or a ``gr.Request``.

    Raises:
        RuntimeError: the request did not pass the guard, or its route needs no sign-in (a bug, not the caller's
            mistake).
    """
    connection = request if isinstance(request, HTTPConnection) else getattr(request, "request", None)
    if isinstance(connection, HTTPConnection):
        identity = connection.scope.get("state", {}).get(_KEY)
        if isinstance(identity, Identity):
            return identity
    raise RuntimeError("The request has no identity: it did not pass the guard, or its route needs no sign-in.")


def user_id_of(request: object) -> str:
    """Returns the user id of a request. Raises as :func:`identity_of`."""
    return identity_of(request).user_id
