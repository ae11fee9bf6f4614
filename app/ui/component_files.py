"""Where browsers load the components' scripts and styles from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

import gradio as gr

from app.ui.static_files import SUFFIXES

_UI_DIR = Path(__file__).resolve().parent


@dataclass(frozen=True)
class _Served:
    url: str
    script: str | None
    style: str | None


_served: ContextVar[_Served | None] = ContextVar("served", default=None)


@contextmanager
def files_served_at(url: str, *, script: str | None = None, style: str | None = None) -> Iterator[None]:
    """Let the components that are built in this context load their scripts and styles below ``url``.

    Without it, Gradio serves the files, so that the components work in any Gradio app.

    Args:
        script: where, below ``url``, all modules of the page are one script, made by ``join_modules``.
        style: where, below ``url``, all its stylesheets are one.
    """
    token = _served.set(_Served(url, script, style))
    try:
        yield
    finally:
        _served.reset(token)


def import_module(path: str) -> str:
    """Return a JavaScript expression: the promise of the module at ``path``, relative to this package.

    It needs ``at`` of :data:`SCRIPT_ROOT`.
    """
    served = _served.get()
    if served is None or served.script is None:
        return f"import(at({json.dumps(f'{_files_url()}/{path}')}))"
    url = json.dumps(f"{served.url}/{served.script}")
    return f"import(at({url})).then(({{ modules }}) => modules[{json.dumps(path)}])"


def stylesheet_urls(paths: Iterable[str]) -> list[str]:
    """Return the URLs of the stylesheets at ``paths``, relative to this package; ``at`` makes them absolute."""
    served = _served.get()
    if served is None or served.style is None:
        return [f"{_files_url()}/{path}" for path in paths]
    return [f"{served.url}/{served.style}"]


def _files_url() -> str:
    """Return the URL of the package's files: relative to ``root`` of :data:`SCRIPT_ROOT` where Gradio serves them."""
    if (served := _served.get()) is not None:
        return served.url
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
