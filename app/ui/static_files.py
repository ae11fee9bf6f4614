"""Serves the scripts and stylesheets of the pages."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC_DIR = Path(__file__).parent / "static"


class RevalidatedFiles(StaticFiles):
    """Static files that browsers cache but revalidate on each use, so modules of two versions are never mixed."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response
