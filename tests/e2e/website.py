"""A customer's website: pages of another origin than Deskmate's."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Website:
    """Serves the pages that a test gives it."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[str, dict[str, str]]] = {}  #: HTML and headers, by path
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                html, headers = site.pages.get(self.path, ("", {}))
                self.send_response(200 if html else 404)
                for name, value in {"Content-Type": "text/html; charset=utf-8", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(html.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Another name than the widget's server, too: browsers keep the storage of sites apart, whatever their ports.
        self.origin = f"http://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
