"""Local package index with one package, whose transfer can be cut, held and falsified."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from app.models.recommended import RecommendedModel, Wheel
from testing.gguf_header import gguf_bytes

FILE = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/Tiny.Q4_1.gguf"
PADDING = {"tensor": (1024, 320)}
CHUNK = 20_000  # bytes


class PackageIndex:
    """Serves ``tiny-model``, a wheel with a GGUF file in it."""

    def __init__(self) -> None:
        self.model = gguf_bytes(tensors=PADDING)
        with io.BytesIO() as buffer:
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr(MEMBER, self.model)
            self.wheel = buffer.getvalue()
        self.sent = self.wheel  #: what is sent instead, if changed
        self.cut_at: list[int] = []  #: at how many bytes each of the next transfers breaks
        self.has_ranges = True
        self.is_html = False
        self.resume = threading.Event()  #: while unset, a transfer pauses halfway
        self.resume.set()
        self.paused = threading.Event()  #: set when a transfer has paused
        self.ranges: list[str | None] = []  #: the Range headers of the transfers
        self._http = _Server(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/simple"

    @property
    def recommended(self) -> RecommendedModel:
        """The entry of the recommended list."""
        wheel = Wheel(
            package="tiny-model",
            file=FILE,
            sha256=hashlib.sha256(self.wheel).hexdigest(),
            bytes=len(self.wheel),
            member=MEMBER,
            member_bytes=len(self.model),
            generation_config={"temperature": 0.5},
        )
        return RecommendedModel(
            name="tiny",
            title="Tiny Model",
            description="Says nothing.",
            size_mb=1,
            licence="Apache-2.0",
            terms="open",
            hub="somebody/model",
            wheel=wheel,
        )

    @contextmanager
    def running(self) -> Iterator[PackageIndex]:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield self
        finally:
            self.resume.set()
            self._http.shutdown()
            self._http.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors: a client may disconnect at any time."""


def _handler(index: PackageIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = True
            if self.path == "/simple/tiny-model/":
                self._list()
            elif self.path == f"/files/{FILE}":
                self._file()
            else:
                self._answer(404, b"", {})

        def _list(self) -> None:
            if index.is_html:
                page = f'<html><body><a href="../../files/{FILE}#sha256=0">{FILE}</a></body></html>'
                self._answer(200, page.encode(), {"Content-Type": "text/html"})
                return
            page = json.dumps({"files": [{"filename": FILE, "url": f"/files/{FILE}"}]})
            self._answer(200, page.encode(), {"Content-Type": "application/vnd.pypi.simple.v1+json"})

        def _file(self) -> None:
            asked = self.headers.get("Range")
            index.ranges.append(asked)
            begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and index.has_ranges else 0
            content = index.sent[begin:]
            headers = {"Content-Range": f"bytes {begin}-{len(index.sent) - 1}/{len(index.sent)}"} if begin else {}
            cut = index.cut_at.pop(0) if index.cut_at else len(content)
            self._answer(206 if begin else 200, content, headers, cut)

        def _answer(self, status: int, content: bytes, headers: dict[str, str], cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content)), "Connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()
            content = content[:cut]
            for at in range(0, len(content), CHUNK):
                if cut is not None and at <= len(content) // 2 < at + CHUNK and not index.resume.is_set():
                    index.paused.set()
                    index.resume.wait()
                self.wfile.write(content[at : at + CHUNK])

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing, to keep the test's output clean."""

    return Handler
