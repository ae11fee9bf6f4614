"""Authentication without accounts, but with an API key from the settings for ``/v1``."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from app.auth.authenticator import bearer_of
from app.auth.identity import Identity, LocalUser
from app.domain.accounts import Scope
from app.domain.roles import UserRole
from app.error_format import is_openai_path


class KeyedLocalUser(LocalUser):
    """The local user, whose programs need a key for OpenAI's API.

    The page and its own API need no key: they are reachable from this machine only, and the guard lets no other
    website drive them. A program on this machine without the key is refused, but could still open the page, as the
    user can: the key protects ``/v1`` if a proxy or tunnel forwards only that.

    Args:
        api_key: what programs send as a bearer token.
    """

    def __init__(self, user_id: str, api_key: SecretStr) -> None:
        super().__init__(user_id)
        self._api_key = api_key.get_secret_value().encode()
        self._program = Identity(user_id, UserRole.ADMIN, key_id="APP_API_KEY", scopes=frozenset(Scope))

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:
        if not is_openai_path(scope["path"]):
            return await super().identify(scope)
        shown = bearer_of(scope)
        if shown is None or not hmac.compare_digest(shown.encode(), self._api_key):
            return None
        return self._program

    @property
    def key_hint(self) -> str:
        return "The key is the value of APP_API_KEY."
