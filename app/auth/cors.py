"""CORS for OpenAI's API: pages of listed origins may call ``/v1`` from a browser, with an API key and no cookie.

Off unless ``APP_CORS_ORIGINS`` lists origins. The chat's own API and the page are never open to another origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import Scope

ALLOWED_METHODS = "GET, POST"
MAX_AGE_SECONDS = 600
#: Response headers that scripts may read, besides those that CORS always allows.
EXPOSED_HEADERS = "Retry-After, X-Ignored-Fields, X-Request-Id"
#: The request headers that a preflight asks for. OpenAI's client sends a dozen of its own (``x-stainless-*``).
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]{1,64}(\s*,\s*[A-Za-z0-9-]{1,64}){0,49}")


class CrossOrigin:
    """Decides which cross-origin requests are allowed, and provides the headers of their responses.

    Args:
        origins: the allowed origins, as :func:`app.domain.origins.origin_of` formats them.
    """

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origins)

    def allows(self, scope: Scope) -> bool:
        """Whether the request comes from an allowed origin and is for ``/v1``."""
        if not self._origins or not scope["path"].startswith("/v1/"):
            return False
        return Headers(scope=scope).get("origin", "") in self._origins

    def is_preflight(self, scope: Scope) -> bool:
        """Whether the request is the preflight of an allowed request."""
        asks = scope.get("method") == "OPTIONS" and "access-control-request-method" in Headers(scope=scope)
        return asks and self.allows(scope)

    def preflight_headers(self, scope: Scope) -> dict[str, str]:
        """Returns the headers of a preflight's response, besides :meth:`answer_headers`."""
        requested = Headers(scope=scope).get("access-control-request-headers", "")
        wanted = requested if _HEADER_NAMES.fullmatch(requested) else "Authorization, Content-Type"
        return {
            "Access-Control-Allow-Methods": ALLOWED_METHODS,
            "Access-Control-Allow-Headers": wanted,
            "Access-Control-Max-Age": str(MAX_AGE_SECONDS),
        }

    def answer_headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Returns the headers of every response below ``/v1``. Credentials, and so cookies, are never allowed."""
        if not self._origins or not scope["path"].startswith("/v1/"):
            return []
        headers = [(b"vary", b"Origin, Access-Control-Request-Headers")]
        if self.allows(scope):
            origin = Headers(scope=scope)["origin"]
            headers += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
            ]
        return headers
