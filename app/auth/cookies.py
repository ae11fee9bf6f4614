"""The cookie that a browser is known by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

_NAME = "deskmate_session"
#: As long as browsers keep any: how long a session lasts is the server's to say.
_MAX_AGE_SECONDS = 400 * 24 * 3600


class SessionCookie:
    """Reads and writes it: not for scripts, not sent along by other websites' requests.

    Args:
        secure: people come by https. The cookie is sent nowhere else then, and by its name no other host of the
            domain can set it.
    """

    def __init__(self, *, secure: bool) -> None:
        self._secure = secure
        self.name = f"__Host-{_NAME}" if secure else _NAME

    def read(self, scope: Mapping[str, Any]) -> str | None:
        """The token that a request brings."""
        for header in Headers(scope=dict(scope)).getlist("cookie"):
            if token := cookie_parser(header).get(self.name):
                return token
        return None

    def write(self, response: Response, token: str) -> None:
        """Have the browser keep ``token``."""
        response.set_cookie(
            self.name, token, max_age=_MAX_AGE_SECONDS, path="/", secure=self._secure, httponly=True, samesite="lax"
        )

    def clear(self, response: Response) -> None:
        """Have the browser forget it."""
        response.delete_cookie(self.name, path="/", secure=self._secure, httponly=True, samesite="lax")
