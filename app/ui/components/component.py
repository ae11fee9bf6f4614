"""The base of this package's Gradio components: subclasses of ``gr.HTML`` made of files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import gradio as gr

from app.ui.gradio_patches import without_type_stubs
from app.ui.static_files import SUFFIXES
from app.ui.theme import SHARED_STYLES

_UI_DIR = Path(__file__).resolve().parents[1]
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


class _WithoutStub(type(gr.HTML)):  # type: ignore[misc]
    """Creates a component's class without the type stub that Gradio writes beside every component's source."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> type:
        with without_type_stubs():
            created: type = super().__new__(cls, name, bases, attributes)
        return created


class FileComponent(gr.HTML, metaclass=_WithoutStub):  # type: ignore[misc]  # Gradio has no types
    """A component whose template, script and style are files beside its class.

    The folder ``components/NAME/`` has ``NAME.py`` with the class; ``NAME.html``, a template that holds no ``${...}``
    and no ``{{...}}``, so that Gradio renders it once; ``NAME.js``, a module that exports ``mount(context)``; and
    ``NAME.css``. ``mount`` gets what Gradio gives to ``js_on_load``: ``element``, ``trigger``, ``props``, ``watch``.
    """

    #: Stylesheets besides ``NAME.css``: paths relative to ``app/ui``.
    STYLES: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        value: Any = None,
        *,
        elem_id: str | None = None,
        elem_classes: list[str] | str | None = None,
        visible: bool = True,
        render: bool = True,
        **props: Any,
    ) -> None:
        """Args:
        value: what the component shows; see the subclass.
        props: what the script reads from ``props``; see the subclass.
        """
        file = Path(sys.modules[type(self).__module__].__file__ or "")
        name = file.stem
        files = files_url()
        styles = [f"{files}/{style}" for style in (*SHARED_STYLES, *self.STYLES, f"components/{name}/{name}.css")]
        classes = [elem_classes] if isinstance(elem_classes, str) else elem_classes or []
        super().__init__(
            value,
            html_template=file.with_suffix(".html").read_text(encoding="utf-8"),
            js_on_load=_LOAD.format(
                root=SCRIPT_ROOT,
                name=json.dumps(name),
                loader=json.dumps(f"{files}/shared/component.js"),
                script=json.dumps(f"{files}/components/{name}/{name}.js"),
                styles=json.dumps(styles),
            ),
            apply_default_css=False,
            elem_id=elem_id,
            elem_classes=["dm-component", f"dm-component-{name}", *classes],
            visible=visible,
            render=render,
            **props,
        )


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

_LOAD = """
    {root}
    import(at({loader})).then(({{ load }}) =>
      load({name}, at({script}), {styles}.map(at), {{ element, trigger, props, watch }}));
"""


@cache
def _serve_files() -> None:
    """Let Gradio serve what browsers load from this package, but not its Python sources, in every app."""
    gr.set_static_paths([file for file in _UI_DIR.rglob("*") if file.suffix in SUFFIXES])
