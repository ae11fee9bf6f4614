"""Where browsers load the components' scripts and styles from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from urllib.parse import quote

import gradio as gr

from app.ui.static_files import SUFFIXES

_UI_DIR = Path(__file__).resolve().parent
_files_url: ContextVar[str | None] = ContextVar("files_url", default=None)


@contextmanager
def files_served_at(url: str) -> Iterator[None]:
    """Let the components that are built in this context load their scripts and styles below ``url``.

    Without it, Gradio serves the files, so that the components work in any Gradio app.
    """
    token = _files_url.set(url)
    try:
        yield
    finally:
        _files_url.reset(token)


def files_url() -> str:
    """Return the URL of the package's files: relative to ``root`` of :data:`SCRIPT_ROOT` where Gradio serves them."""
    if (url := _files_url.get()) is not None:
        return url
    _serve_files()
    return f"gradio_api/file={quote(_UI_DIR.as_posix())}"


SCRIPT_ROOT = """
    const root = `${(window.gradio_config?.root ?? new URL(".", document.baseURI).href).replace(/\\/$/, "")}/`;
    const at = (path) => new URL(path, root).href;
"""
"""JavaScript that defines ``at(path)``. The URLs of files that Gradio serves are relative to the app, which may lie
below a path and have several pages."""


@cache
def _serve_files() -> None:
    """Let Gradio serve what browsers load from this package, but not its Python sources, in every app."""
    gr.set_static_paths([file for file in _UI_DIR.rglob("*") if file.suffix in SUFFIXES])
