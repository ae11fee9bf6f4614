"""Who is asking. The guard decides once per request; everybody else reads the answer here."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.requests import HTTPConnection

_KEY = "user_id"


def set_user_id(scope: MutableMapping[str, Any], user_id: str) -> None:
    """Note on an ASGI scope who the caller is. Only the guard calls this."""
    scope.setdefault("state", {})[_KEY] = user_id


def user_id_of(request: object) -> str:
    """The id of the user behind a FastAPI request or a ``gr.Request``.

    Raises:
        RuntimeError: the request did not come through the guard (a mistake of ours, never the caller's).
    """
    connection = request if isinstance(request, HTTPConnection) else getattr(request, "request", None)
    if isinstance(connection, HTTPConnection):
        user_id = connection.scope.get("state", {}).get(_KEY)
        if isinstance(user_id, str):
            return user_id
    raise RuntimeError("This request did not pass the guard, so nobody knows whose it is.")
