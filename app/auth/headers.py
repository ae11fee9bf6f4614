"""Security headers of every response: content security policy, HSTS, caching; also removes foreign CORS headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.auth.cors import CrossOrigin
from app.auth.policy import is_embeddable
from app.error_format import BESIDE_V1, is_openai_path

_NOWHERE = "frame-ancestors 'none'"
_IMAGES = "img-src 'self' data:"
_EVERYWHERE = ("object-src 'none'", "base-uri 'self'", "form-action 'self'", _NOWHERE)

#: Gradio compiles templates in the page and sets inline styles, hence the two ``unsafe-`` directives.
#: ``connect-src 'self'`` keeps code on the page from sending data to other servers.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        *_EVERYWHERE,
    )
)
#: Our own pages only load and run our own files.
OWN_PAGES_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        _IMAGES,
        "connect-src 'self'",
        *_EVERYWHERE,
    )
)
#: Responses that are not pages load and run nothing, should a browser ever display one.
DATA_POLICY = "; ".join(("default-src 'none'", *_EVERYWHERE))

#: Set by a route on the response that may be framed; replaced by the policy with these ancestors, and never sent.
FRAME_ANCESTORS = "x-frame-ancestors"

_OWN_PAGES = ("/sign-in", "/setup", "/account", "/invitation", "/desk", "/widget")
_DATA = ("/api", "/v1", "/health", "/ready", "/metrics", *BESIDE_V1)

_SECURITY_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: For a year, browsers use https even for http links.
_HTTPS_ONLY = {"Strict-Transport-Security": "max-age=31536000"}


def frame_ancestors(origins: Iterable[str]) -> dict[str, str]:
    """The header by which the route of an embeddable page names the origins that may frame it."""
    return {FRAME_ANCESTORS: " ".join(origins)}


def policy_of(path: str) -> str:
    """Returns the Content-Security-Policy for ``path``."""
    first = f"/{path.lstrip('/').partition('/')[0]}"
    if first in _OWN_PAGES:
        return OWN_PAGES_POLICY
    return DATA_POLICY if first in _DATA else CONTENT_SECURITY_POLICY


class SecurityHeaders:
    """The outermost ASGI middleware, so that error responses carry the headers too.

    It also removes any CORS header that a route sets: Gradio would allow any origin. Only ``cross_origin`` says which
    other origins may read a response; the guard answers their preflights.
    """

    def __init__(self, app: ASGIApp, *, https: bool = False, cross_origin: CrossOrigin | None = None) -> None:
        """``https``: the site is served by https, and browsers are told (HSTS) to use nothing else."""
        self._app = app
        self._cross_origin = cross_origin or CrossOrigin()
        everywhere = {**_SECURITY_HEADERS, **(_HTTPS_ONLY if https else {})}
        self._headers = {
            policy: _as_sent({**everywhere, "Content-Security-Policy": policy})
            for policy in (CONTENT_SECURITY_POLICY, OWN_PAGES_POLICY, DATA_POLICY)
        }
        self._names = frozenset(name for headers in self._headers.values() for name, _ in headers)
        self._embedded = {**everywhere, "Cross-Origin-Resource-Policy": "cross-origin"}
        del self._embedded["X-Frame-Options"]  # it knows no list of origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._hardened(scope, message.get("headers", []))
            await send(message)

        await self._app(scope, receive, send_hardened)

    def _hardened(self, scope: Scope, given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        path = scope["path"]
        policy = policy_of(path)
        is_preflight = self._cross_origin.is_preflight(scope)
        kept = [(name.lower(), value) for name, value in given]
        ancestors = next((value.decode() for name, value in kept if name == FRAME_ANCESTORS.encode()), None)
        kept = [
            one
            for one in kept
            if one[0] not in self._names
            and one[0] != FRAME_ANCESTORS.encode()
            and (is_preflight or not one[0].startswith(b"access-control-"))
        ]
        private = path.startswith("/api/") or is_openai_path(path) or policy == OWN_PAGES_POLICY
        if private and not any(name == b"cache-control" for name, _ in kept):
            kept.append((b"cache-control", b"no-store"))
        headers = self._headers[policy]
        if ancestors is not None and is_embeddable(path):
            allowed = f"frame-ancestors {ancestors}" if ancestors else _NOWHERE
            # A page that is embedded has no cookie: it reads pictures with its token, and shows them as blobs.
            policy = policy.replace(_NOWHERE, allowed).replace(_IMAGES, f"{_IMAGES} blob:")
            headers = _as_sent({**self._embedded, "Content-Security-Policy": policy})
        return [*kept, *headers, *self._cross_origin.answer_headers(scope)]


def _as_sent(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
