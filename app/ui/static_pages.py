"""Static pages without Gradio: sign-in, first-admin setup, invitation and account."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import FileResponse

from app.ui.static_files import STATIC_DIR

#: Route to file in ``pages/account/``. The pages' scripts load their data from the JSON API.
_PAGES = {
    "/sign-in": "sign_in.html",
    "/setup": "link.html",
    "/invitation/{token}": "link.html",
    "/account": "account.html",
}


def install_pages(app: FastAPI) -> None:
    """Add the routes of the static pages to ``app``."""
    for path, name in _PAGES.items():
        _add(app, path, name)


def _add(app: FastAPI, path: str, name: str) -> None:
    async def page() -> FileResponse:
        return FileResponse(STATIC_DIR / "pages" / "account" / name, media_type="text/html; charset=utf-8")

    app.add_api_route(path, page, include_in_schema=False)
