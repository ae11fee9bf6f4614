"""Local model hub with the part of the Hugging Face Hub's API that loading a model uses."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest

CHUNK = 10_000  #: bytes


class Hub:
    """Serves one folder as the model ``somebody/model``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit = "c" * 40  #: of the main branch
        self.older: list[str] = []  #: earlier commits
        self.refuses: HTTPStatus | None = None  #: status of every answer, if set
        self.requested_paths: list[str] = []  #: requested paths
        self.sent: list[str] = []  #: names of the weight files sent
        self.resume = threading.Event()  #: while unset, the transfer of each weight file pauses halfway
        self.resume.set()
        self.never_paused: set[str] = set()  #: weight files whose transfer never pauses
        self.paused = threading.Event()  #: set when a transfer has paused
        self.unresponsive = threading.Event()  #: while set, requests get no answer
        self._running = False
        self._http = _Server(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @contextmanager
    def running(self, cache: Path) -> Iterator[Hub]:
        """Serves, and points this process's huggingface_hub at this server and at ``cache``."""
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        self._running = True
        with pytest.MonkeyPatch.context() as patch:
            constants = huggingface_hub.constants
            patch.setattr(constants, "ENDPOINT", self.url)
            patch.setattr(
                constants, "HUGGINGFACE_CO_URL_TEMPLATE", self.url + "/{repo_id}/resolve/{revision}/{filename}"
            )
            patch.setattr(constants, "HF_HUB_CACHE", str(cache))
            patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)
            try:
                yield self
            finally:
                self.go_on()
                self.end()

    def go_on(self) -> None:
        """Finishes all pending answers, abandoned downloads included, so that they cannot disturb another test."""
        self.unresponsive.clear()
        self.resume.set()
        for thread in threading.enumerate():
            if thread.name == "hub-download":
                thread.join(20)

    def end(self) -> None:
        """Stops the server."""
        if self._running:
            self._running = False
            self._http.shutdown()
            self._http.server_close()

    def next_commit(self) -> None:
        """Gives the folder's present content a new commit."""
        self.older.append(self.commit)
        self.commit = f"{int(self.commit, 16) + 1:040x}"

    def siblings(self) -> list[dict[str, str]]:
        return [{"rfilename": file.name} for file in self.files()]

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_file())


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors: a client may disconnect at any time."""


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._answer(body=True, asked=asked)

        def _answer(self, *, body: bool, asked: str = "") -> None:
            path = self.path.partition("?")[0]
            hub.requested_paths.append(path)
            while hub.unresponsive.is_set():
                time.sleep(0.01)
            if hub.refuses is not None:
                self._head(hub.refuses, 0, {"X-Error-Code": "GatedRepo"} if hub.refuses == HTTPStatus.FORBIDDEN else {})
            elif path in ("/api/models/somebody/model", "/api/models/somebody/model/revision/main"):
                self._json({"id": "somebody/model", "sha": hub.commit, "siblings": hub.siblings()}, body=body)
            elif (commit := path.removeprefix("/api/models/somebody/model/revision/")) in hub.older:
                self._json({"id": "somebody/model", "sha": commit, "siblings": []}, body=body)
            elif path.startswith("/api/models/somebody/model/tree/"):
                self._json([_listed(file) for file in hub.files()], body=body)
            elif path.startswith("/api/models/somebody/model/paths-info/"):
                self._json([_listed(file) for file in hub.files() if file.name in asked], body=body)
            elif path.startswith("/somebody/model/resolve/") and (hub.folder / path.rpartition("/")[2]).is_file():
                self._file(hub.folder / path.rpartition("/")[2], body=body)
            else:
                code = "RevisionNotFound" if "/revision/" in path else "EntryNotFound"
                known = "somebody/model" in path
                self._head(HTTPStatus.NOT_FOUND, 0, {"X-Error-Code": code if known else "RepoNotFound"})

        def _file(self, file: Path, *, body: bool) -> None:
            content = file.read_bytes()
            self._head(HTTPStatus.OK, len(content), {"X-Repo-Commit": hub.commit, "ETag": f'"{_oid(file)}"'})
            if not body:
                return
            weights = file.suffix in (".safetensors", ".gguf")
            hub.sent += [file.name] if weights else []
            for at in range(0, len(content), CHUNK):
                halfway = at <= len(content) // 2 < at + CHUNK
                if weights and halfway and file.name not in hub.never_paused and not hub.resume.is_set():
                    hub.paused.set()
                    hub.resume.wait()
                self.wfile.write(content[at : at + CHUNK])

        def _json(self, value: object, *, body: bool) -> None:
            content = json.dumps(value).encode()
            self._head(HTTPStatus.OK, len(content), {"Content-Type": "application/json"})
            if body:
                self.wfile.write(content)

        def _head(self, status: HTTPStatus, length: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(length), "Connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.close_connection = True  # so that no request is answered after the end

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing, to keep the test's output clean."""

    return Handler


def _listed(file: Path) -> dict[str, object]:
    return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _oid(file)}


def _oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
