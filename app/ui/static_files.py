"""Serves the scripts, stylesheets and pictures of this package to browsers."""

from __future__ import annotations

import asyncio
import gzip
from collections import OrderedDict
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

STATIC_DIR = Path(__file__).parent
#: Where this package's files are served in this application.
FILES_URL = "/ui/static"
#: What a browser may load from this package: its Python sources lie in the same folders.
SUFFIXES = frozenset({".js", ".mjs", ".css", ".svg", ".woff2"})
_COMPRESSED = SUFFIXES - {".woff2"}  # which is compressed itself
_MIN_BYTES = 500  # a smaller file would hardly shrink
_MAX_FILES = 400  # whose compressed bytes are kept, a few KB each; the least recently used one goes


class PageFiles(StaticFiles):
    """Static files that browsers cache but revalidate on each use, so modules of two versions are never mixed.

    Text is sent compressed. It is the same for all users and holds no secret that its size could tell.
    """

    def __init__(self, *, directory: Path) -> None:
        super().__init__(directory=directory)
        self._compressed: OrderedDict[tuple[str, str], bytes] = OrderedDict()  # by path and ETag: files may share one

    async def get_response(self, path: str, scope: Scope) -> Response:
        if Path(path).suffix not in SUFFIXES:
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        if Path(path).suffix in _COMPRESSED:
            response.headers.add_vary_header("Accept-Encoding")
            if isinstance(response, FileResponse) and _takes_gzip(scope):
                return await self._compress(response)
        return response

    async def _compress(self, response: FileResponse) -> Response:
        size, etag = int(response.headers["Content-Length"]), response.headers["ETag"]
        if size < _MIN_BYTES or response.status_code != 200:
            return response
        key = (str(response.path), etag)
        body = self._compressed.get(key)
        if body is None:
            content = await asyncio.to_thread(Path(response.path).read_bytes)
            body = self._compressed[key] = await asyncio.to_thread(gzip.compress, content, 9, mtime=0)
            if len(self._compressed) > _MAX_FILES:
                self._compressed.popitem(last=False)
        self._compressed.move_to_end(key)
        headers = {
            name: value for name, value in response.headers.items() if name not in ("content-length", "accept-ranges")
        }
        # The ETag stays that of the file: the answer to If-None-Match is 304, whatever the encoding.
        return Response(body, headers=headers | {"Content-Encoding": "gzip", "ETag": f"W/{etag}"})


class CompressedPage:
    """Sends the chat page's HTML compressed: most of it are Gradio's settings, the same for all users.

    Answers of the API are not: they hold a user's texts beside what a request says, and their size could tell secrets.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._compressed = GZipMiddleware(app, compresslevel=6)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET"
        await (self._compressed if is_page else self._plain)(scope, receive, send)


def _takes_gzip(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    offered = [part.partition(";") for part in headers.get("Accept-Encoding", "").lower().split(",")]
    taken = any(name.strip() == "gzip" and parameters.replace(" ", "") != "q=0" for name, _, parameters in offered)
    return taken and "range" not in headers and scope["method"] == "GET"
