"""Serves the scripts, stylesheets and pictures of this package to browsers."""

from __future__ import annotations

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from app.ui.joined_files import JoinedFile

try:
    import brotli  # type: ignore[import-untyped]  # Gradio needs it
except ImportError:  # another version of Gradio may not
    brotli = None

STATIC_DIR = Path(__file__).parent
#: Where this package's files are served in this application.
FILES_URL = "/ui/static"
#: What a browser may load from this package: its Python sources lie in the same folders.
SUFFIXES = frozenset({".js", ".mjs", ".css", ".svg", ".woff2"})
_COMPRESSED = SUFFIXES - {".woff2"}  # which is compressed itself
_MIN_BYTES = 500  # a smaller file would hardly shrink
_MAX_FILES = 400  # whose compressed bytes are kept, mostly a few KB each; the least recently used one goes


class PageFiles(StaticFiles):
    """Static files that browsers cache but revalidate on each use, so modules of two versions are never mixed.

    Text is sent compressed. It is the same for all users and holds no secret that its size could tell.
    """

    cache_control = "no-cache"
    suffixes: frozenset[str] | None = SUFFIXES  #: which files a browser may load; None: any

    def __init__(self, *, directory: Path, joined: Mapping[str, JoinedFile] = MappingProxyType({})) -> None:
        """``joined``: files that are made of others, by their path."""
        super().__init__(directory=directory)
        self._joined = joined
        #: By path, ETag (which files may share) and encoding.
        self._compressed: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()

    async def get_response(self, path: str, scope: Scope) -> Response:
        if self.suffixes is not None and Path(path).suffix not in self.suffixes:
            raise HTTPException(404)
        encoding = _encoding_for(scope) if Path(path).suffix in _COMPRESSED else None
        if path in self._joined:
            response = await self._send_joined(path, encoding, scope)
        else:
            response = await super().get_response(path, scope)
            if isinstance(response, FileResponse) and encoding is not None:
                response = await self._compress_file(response, encoding)
        response.headers["Cache-Control"] = self.cache_control
        if Path(path).suffix in _COMPRESSED:
            response.headers.add_vary_header("Accept-Encoding")
        return response

    async def _send_joined(self, path: str, encoding: str | None, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405)
        file = self._joined[path]
        joined = await asyncio.to_thread(file.read)
        response = Response(joined.content, media_type=file.media_type, headers={"ETag": joined.etag})
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        if encoding is None:
            return response
        return await self._compress(response, (path, joined.etag, encoding), lambda: joined.content)

    async def _compress_file(self, response: FileResponse, encoding: str) -> Response:
        if int(response.headers["Content-Length"]) < _MIN_BYTES or response.status_code != 200:
            return response
        key = (str(response.path), response.headers["ETag"], encoding)
        return await self._compress(response, key, Path(response.path).read_bytes)

    async def _compress(self, response: Response, key: tuple[str, str, str], read: Callable[[], bytes]) -> Response:
        _, etag, encoding = key
        body = self._compressed.get(key)
        if body is None:
            body = self._compressed[key] = await asyncio.to_thread(lambda: _COMPRESSORS[encoding](read()))
            if len(self._compressed) > _MAX_FILES:
                self._compressed.popitem(last=False)
        self._compressed.move_to_end(key)
        headers = {
            name: value for name, value in response.headers.items() if name not in ("content-length", "accept-ranges")
        }
        # The ETag stays that of the file: the answer to If-None-Match is 304, whatever the encoding.
        return Response(body, headers=headers | {"Content-Encoding": encoding, "ETag": f"W/{etag}"})


class HashedFiles(PageFiles):
    """Static files of any kind whose names tell their content, so that browsers keep them for a year, unasked."""

    cache_control = "private, max-age=31536000, immutable"
    suffixes = None


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


def _compress_gzip(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)


#: By encoding, the preferred one first. Brotli's quality 11 would take a second of CPU for a tenth less.
_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    **({"br": partial(brotli.compress, quality=9)} if brotli else {}),
    "gzip": _compress_gzip,
}


def _encoding_for(scope: Scope) -> str | None:
    """The encoding in which a browser gets a text; None: as it is."""
    headers = Headers(scope=scope)
    if "range" in headers or scope["method"] != "GET":
        return None
    offered = [part.partition(";") for part in headers.get("Accept-Encoding", "").lower().split(",")]
    taken = {name.strip() for name, _, parameters in offered if parameters.replace(" ", "") != "q=0"}
    return next((encoding for encoding in _COMPRESSORS if encoding in taken), None)
