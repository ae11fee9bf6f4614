"""Files of contacts as responses: nothing that a browser would run."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Response

#: Types that an agent's page may show; every other one is saved.
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def attachment_response(name: str, type: str, content: bytes) -> Response:
    """The file: a picture as what its content is, anything else as bytes to save.

    The policy of all data (``app.auth.headers``) keeps a browser from running any of it, or guessing another type.
    """
    is_picture = type in PICTURES
    disposition = "inline" if is_picture else "attachment"
    return Response(
        content,
        media_type=type if is_picture else "application/octet-stream",
        headers={
            "Content-Disposition": f"{disposition}; filename*=UTF-8''{quote(name, safe='')}",
            "Cache-Control": "private, max-age=3600",
        },
    )
