"""Authentication with accounts: browsers by their session cookie, programs by an API key."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from pydantic import SecretStr
from starlette.datastructures import Headers

from app.auth.accounts import KEY_PREFIX, AccountService
from app.auth.identity import Identity
from app.auth.policy import takes_api_key
from app.error_format import is_openai_path

#: Minimum seconds between two updates of a session's last-seen or a key's last-used time.
TOUCH_SECONDS = 300.0
#: Maximum number of remembered updates; above it, the oldest is forgotten.
_TOUCHES_KEPT = 10_000


class AccountAuthenticator:
    """Identifies the user of a request by its cookie or key.

    Args:
        accounts: returns the account service; called per request, since it opens after the routes exist.
        metrics_token: the bearer token for ``/metrics``; None closes it.
    """

    def __init__(self, accounts: Callable[[], AccountService], metrics_token: SecretStr | None) -> None:
        self._accounts = accounts
        self._metrics_token = metrics_token
        self._touched: OrderedDict[str, float] = OrderedDict()
        self._touching: set[asyncio.Task[None]] = set()

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:
        """Returns the identity behind the request's key or cookie; None if neither is valid.

        Raises:
            StorageUnavailable: the database does not respond.
        """
        bearer = bearer_of(scope)
        # A key takes precedence: a wrong one is refused, even if a valid cookie comes along.
        if bearer is not None and is_api_key(bearer, scope):
            return await self._by_key(bearer)
        return await self._by_cookie(scope)

    @property
    def key_hint(self) -> str:
        return "Create API keys on your account page."

    def may_read_metrics(self, scope: Mapping[str, Any]) -> bool:
        """Whether the request carries the token for ``/metrics``."""
        shown = bearer_of(scope)
        if self._metrics_token is None or shown is None:
            return False
        return hmac.compare_digest(shown.encode(), self._metrics_token.get_secret_value().encode())

    def watch(self, identity: Identity) -> AbstractContextManager[asyncio.Event | None]:
        """Context for a response in flight: yields an event that is set when the identity is revoked."""
        return self._accounts().revocation_watcher.watch(identity)

    async def _by_key(self, token: str) -> Identity | None:
        accounts = self._accounts()
        key = await accounts.key_cache.find(accounts.mint.hash(token))
        if key is None:
            return None
        self._touch(key.id, key.last_used_at, lambda: accounts.keys.touch(key.id, key.user_id))
        return Identity(key.user_id, key.role, key_id=key.id, scopes=key.scopes)

    async def _by_cookie(self, scope: Mapping[str, Any]) -> Identity | None:
        accounts = self._accounts()
        token = accounts.cookie.read(scope)
        session = await accounts.session_cache.find(accounts.mint.hash(token)) if token else None
        if session is None:
            return None
        self._touch(session.id, session.last_seen_at, lambda: accounts.sessions.touch(session.id, session.user_id))
        return Identity(session.user_id, session.role, session_id=session.id)

    def _touch(self, id: str, last: datetime | None, write: Callable[[], Any]) -> None:
        """Updates the last-used time in a task of its own, at most every :data:`TOUCH_SECONDS`: requests don't wait."""
        if last is not None and (datetime.now(UTC) - last).total_seconds() < TOUCH_SECONDS:
            return
        now = time.monotonic()
        if now - self._touched.get(id, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        self._touched[id] = now
        self._touched.move_to_end(id)
        if len(self._touched) > _TOUCHES_KEPT:
            self._touched.popitem(last=False)
        task = asyncio.ensure_future(write())
        self._touching.add(task)
        task.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._touching.discard(task)
        if not task.cancelled():
            task.exception()  # the database layer logged it; marks it as retrieved. A later request updates the time.


def bearer_of(scope: Mapping[str, Any]) -> str | None:
    """Returns the token of ``Authorization: Bearer``, or None."""
    kind, _, token = Headers(scope=dict(scope)).get("authorization", "").partition(" ")
    token = token.strip()
    return token if kind.lower() == "bearer" and token else None


def is_api_key(token: str, scope: Mapping[str, Any]) -> bool:
    """Whether the request is authenticated by its bearer token, right or wrong, and not by a cookie.

    In OpenAI's API every token is an API key. Gradio's routes serve the page too, and a proxy in front of it may add a
    token of its own, so there only a token that begins like our keys is one.
    """
    path = scope["path"]
    return is_openai_path(path) or (token.startswith(KEY_PREFIX) and takes_api_key(scope["method"], path))
