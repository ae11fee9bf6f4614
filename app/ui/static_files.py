"""Serves the scripts, stylesheets and pictures of this package to browsers."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC_DIR = Path(__file__).parent
#: Where this package's files are served in this application.
FILES_URL = "/ui/static"
#: What a browser may load from this package: its Python sources lie in the same folders.
SUFFIXES = frozenset({".js", ".mjs", ".css", ".svg"})


class PageFiles(StaticFiles):
    """Static files that browsers cache but revalidate on each use, so modules of two versions are never mixed."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if Path(path).suffix not in SUFFIXES:
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response
