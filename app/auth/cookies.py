"""The session cookie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

_NAME = "deskmate_session"
#: The longest that browsers keep a cookie. The server decides when the session expires.
_MAX_AGE_SECONDS = 400 * 24 * 3600


class SessionCookie:
    """Reads and writes the session cookie: HttpOnly, SameSite=Lax.

    Args:
        secure: the site is served by https. The cookie is then only sent by https, and its ``__Host-`` prefix keeps
            other hosts of the domain from setting it.
    """

    def __init__(self, *, secure: bool) -> None:
        self._secure = secure
        self.name = f"__Host-{_NAME}" if secure else _NAME

    def read(self, scope: Mapping[str, Any]) -> str | None:
        """Returns the session token of a request, or None."""
        for header in Headers(scope=dict(scope)).getlist("cookie"):
            if token := cookie_parser(header).get(self.name):
                return token
        return None

    def write(self, response: Response, token: str) -> None:
        """Sets the cookie to ``token``."""
        response.set_cookie(
            self.name, token, max_age=_MAX_AGE_SECONDS, path="/", secure=self._secure, httponly=True, samesite="lax"
        )

    def clear(self, response: Response) -> None:
        """Deletes the cookie."""
        response.delete_cookie(self.name, path="/", secure=self._secure, httponly=True, samesite="lax")
