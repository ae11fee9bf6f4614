"""The widget's two addresses: the launcher's script, and the chat that websites show in a frame."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

from app.auth.headers import frame_ancestors
from app.errors import NotFound

_FOLDER = Path(__file__).parent
_ORIGINS = '<meta name="deskmate-origins" content="{}">'
#: Websites load the script on every page: for some minutes a browser need not ask whether it has changed.
_SCRIPT_HEADERS = {"Cache-Control": "public, max-age=300"}
NO_INBOX = "There is no chat at this address. Check the address of the script on your website."


class WidgetInbox(Protocol):
    """What the widget's pages need of an inbox."""

    @property
    def allowed_origins(self) -> Sequence[str]: ...


FindInbox = Callable[[str], Awaitable[WidgetInbox | None]]
"""Finds an inbox by its public token."""


def install_widget(app: FastAPI, find_inbox: FindInbox) -> None:
    """Add the widget's routes to ``app``."""

    async def loader(inbox: str) -> Response:
        headers = await _headers(find_inbox, inbox)
        return Response(
            loader_script(), media_type="text/javascript; charset=utf-8", headers={**headers, **_SCRIPT_HEADERS}
        )

    async def frame(inbox: str) -> HTMLResponse:
        found = await _find(find_inbox, inbox)
        return HTMLResponse(frame_page(found.allowed_origins), headers=frame_ancestors(found.allowed_origins))

    app.add_api_route("/widget/{inbox}.js", loader, include_in_schema=False)
    app.add_api_route("/widget/{inbox}", frame, include_in_schema=False)


def frame_page(allowed_origins: Sequence[str]) -> str:
    """The chat's page, with the origins of the websites whose messages its scripts accept."""
    return _page().replace(_ORIGINS.format(""), _ORIGINS.format(escape(" ".join(allowed_origins))))


async def _headers(find_inbox: FindInbox, token: str) -> dict[str, str]:
    return frame_ancestors((await _find(find_inbox, token)).allowed_origins)


async def _find(find_inbox: FindInbox, token: str) -> WidgetInbox:
    found = await find_inbox(token)
    if found is None:
        raise NotFound(NO_INBOX)
    return found


@cache
def _page() -> str:
    return (_FOLDER / "frame.html").read_text(encoding="utf-8")


@cache
def loader_script() -> str:
    """The script without its comments and indentation: a third of what every page of a website would load."""
    script = (_FOLDER / "loader.js").read_text(encoding="utf-8")
    bare = re.sub(r"^\s*//[^\n]*|/\*\*.*?\*/", "", script, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^\s+", "", bare, flags=re.MULTILINE)
