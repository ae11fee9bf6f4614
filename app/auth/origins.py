"""Same-origin checks: distinguishes requests of our own page from those that another website makes the browser send.

Browsers add ``Sec-Fetch-Site`` and ``Origin`` themselves and scripts cannot change them; programs
(curl, the ``openai`` client) send neither and cannot be driven by a website.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD"})
_EMBEDDING = (("no-cors", "script"), ("navigate", "iframe"))


def host_name(host: str) -> str | None:
    """Returns the name in a ``Host`` header in lower case, without port and brackets; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname.rstrip(".") if parts.hostname else None


def own_addresses(listening_on: str) -> frozenset[str]:
    """Returns this machine's own addresses if the server listens on all interfaces, else none.

    A client that resolves the replicas by one name, as Prometheus does in a container network, sends each one's
    address as ``Host``. Accepting an address is safe: in DNS rebinding, ``Host`` holds a name.
    """
    if listening_on.strip("[]") not in ("0.0.0.0", "::"):
        return frozenset()
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:  # a machine that does not know its own name
        return frozenset()
    return frozenset(str(address[0]) for *_, address in found)


def is_same_origin(method: str, headers: Headers, *, linkable: bool, embeddable: bool = False) -> bool:
    """Whether the request comes from our own page, or from a program, judged by the headers that browsers set.

    ``linkable`` paths may also be opened by following a link on another website: that shows the page to the user and
    reveals nothing to the other website. ``embeddable`` ones may be its scripts and frames, too: they are the same for
    every visitor, and the browser asks the response which websites may frame it.
    """
    safe = method in SAFE_METHODS
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin" or (site == "none" and safe):
            return True
        mode, use = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
        if embeddable and safe and (mode, use) in _EMBEDDING:
            return True
        return (linkable or embeddable) and safe and mode == "navigate" and use == "document"
    origin = headers.get("origin")
    return origin is None or _is_origin_of(origin, headers.get("host", ""))


def _is_origin_of(origin: str, host: str) -> bool:
    """Whether ``Origin: scheme://name[:port]`` names the same server as ``Host: name[:port]``.

    The scheme is not compared: behind a proxy that terminates TLS, ours differs from the browser's.
    """
    try:
        parsed_origin, parsed_host = urlsplit(origin), urlsplit(f"//{host}")
        default_port = {"http": 80, "https": 443}.get(parsed_origin.scheme)
        if default_port is None or not parsed_origin.hostname:
            return False
        return (parsed_origin.hostname, parsed_origin.port or default_port) == (
            parsed_host.hostname,
            parsed_host.port or default_port,
        )
    except ValueError:
        return False
