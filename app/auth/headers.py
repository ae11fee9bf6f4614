"""Headers that every response carries, and some that none may carry."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_EVERYWHERE = ("object-src 'none'", "base-uri 'self'", "form-action 'self'", "frame-ancestors 'none'")

#: Gradio compiles templates in the page and styles elements in place, hence the two ``unsafe-``;
#: ``connect-src 'self'`` is what keeps whatever runs there from talking to anybody else.
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
#: Our own pages run our own files and nothing else.
OWN_PAGES_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        *_EVERYWHERE,
    )
)
#: What is no page runs and loads nothing, should a browser ever show it as one.
DATA_POLICY = "; ".join(("default-src 'none'", *_EVERYWHERE))

_OWN_PAGES = ("/sign-in", "/setup", "/account", "/invitation", "/desk")
_DATA = ("/api", "/v1", "/health", "/ready", "/metrics")

_SECURITY_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: A year, in which browsers come by https whatever they are given.
_HTTPS_ONLY = {"Strict-Transport-Security": "max-age=31536000"}


def policy_of(path: str) -> str:
    """The Content-Security-Policy of what is at ``path``."""
    first = f"/{path.lstrip('/').partition('/')[0]}"
    if first in _OWN_PAGES:
        return OWN_PAGES_POLICY
    return DATA_POLICY if first in _DATA else CONTENT_SECURITY_POLICY


class SecurityHeaders:
    """The outermost ASGI layer: what it adds is on error answers too.

    It also takes away any CORS permission: nobody but our own page may read an answer, and Gradio
    would allow whatever origin asks.
    """

    def __init__(self, app: ASGIApp, *, https: bool = False) -> None:
        """``https``: people come by it, and browsers are told to come by nothing else."""
        self._app = app
        self._headers = {**_SECURITY_HEADERS, **(_HTTPS_ONLY if https else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        private = path.startswith(("/api/", "/v1/")) or policy_of(path) == OWN_PAGES_POLICY

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, value)
                    for name, value in message.get("headers", [])
                    if not name.lower().startswith(b"access-control-")
                ]
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers["Content-Security-Policy"] = policy_of(path)
                if private:
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_hardened)
