"""Static pages without Gradio: sign-in, first-admin setup, invitation, account, desk and cases."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import FileResponse

from app.ui.static_files import STATIC_DIR

#: Route to file in ``pages/``. The pages' scripts load their data from the JSON API.
_PAGES = {
    "/sign-in": "account/sign_in.html",
    "/setup": "account/link.html",
    "/invitation/{token}": "account/link.html",
    "/account": "account/account.html",
    "/desk": "desk/desk.html",
    "/desk/cases": "cases/cases.html",
}
#: Browsers revalidate a page on each use, like its scripts: one from before an update does not fit the new scripts.
_HEADERS = {"Cache-Control": "no-cache"}


def install_pages(app: FastAPI) -> None:
    """Add the routes of the static pages to ``app``."""
    for path, name in _PAGES.items():
        _add(app, path, name)


def _add(app: FastAPI, path: str, name: str) -> None:
    async def page() -> FileResponse:
        return FileResponse(STATIC_DIR / "pages" / name, media_type="text/html; charset=utf-8", headers=_HEADERS)

    app.add_api_route(path, page, include_in_schema=False)
