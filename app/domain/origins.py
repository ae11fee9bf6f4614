"""Web origins in the form that browsers send."""

from __future__ import annotations

from urllib.parse import urlsplit


def origin_of(url: str) -> str:
    """``scheme://name[:port]`` as browsers send it.

    Raises:
        ValueError: the URL is not a single origin; the text shows a valid one.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _no_origin(url) from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or "*" in url
        or parts.username is not None
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
    ):
        raise _no_origin(url)
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_default = port is None or port == {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{name}" if is_default else f"{parts.scheme}://{name}:{port}"


def _no_origin(url: str) -> ValueError:
    return ValueError(
        f"must be exact origins such as https://app.example.com, without a path or *, and '{url}' is not one"
    )
