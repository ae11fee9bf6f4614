"""A sign-in that waits for the provider. Its secrets are in a sealed cookie of the browser that started it."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

from app.auth.oidc.sealed import Sealer

PENDING_SECONDS = 600
"""How long a user may take at the provider."""
_NAME = "deskmate_oidc"


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """What the callback must match."""

    state: str
    nonce: str
    verifier: str  #: of PKCE
    redirect_uri: str
    next_path: str
    link_session: str | None  #: id of the session whose user connects their account; None to sign in

    @classmethod
    def new(cls, redirect_uri: str, next_path: str, link_session: str | None) -> PendingSignIn:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, redirect_uri, next_path, link_session)

    @property
    def challenge(self) -> str:
        """PKCE's S256 challenge."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class PendingCookie:
    """Reads and writes the cookie: HttpOnly, SameSite=Lax, gone after :data:`PENDING_SECONDS`.

    Args:
        secure: the site is served by https, as for :class:`app.auth.cookies.SessionCookie`.
    """

    def __init__(self, secret_key: str, *, secure: bool) -> None:
        self._sealer = Sealer(secret_key, "sign-in")
        self._secure = secure
        self.name = f"__Host-{_NAME}" if secure else _NAME

    def read(self, scope: Mapping[str, Any]) -> PendingSignIn | None:
        """Returns the sign-in that this browser started; None if there is none, or it has expired."""
        for header in Headers(scope=dict(scope)).getlist("cookie"):
            if sealed := cookie_parser(header).get(self.name):
                content = self._sealer.open(sealed)
                return PendingSignIn(**content) if content is not None else None
        return None

    def write(self, response: Response, pending: PendingSignIn) -> None:
        """Sets the cookie."""
        sealed = self._sealer.seal(asdict(pending), seconds=PENDING_SECONDS)
        response.set_cookie(
            self.name, sealed, max_age=PENDING_SECONDS, path="/", secure=self._secure, httponly=True, samesite="lax"
        )

    def clear(self, response: Response) -> None:
        """Deletes the cookie, so that its state is worth nothing any more."""
        response.delete_cookie(self.name, path="/", secure=self._secure, httponly=True, samesite="lax")
