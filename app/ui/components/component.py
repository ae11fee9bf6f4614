"""The base of this package's Gradio components: subclasses of ``gr.HTML`` made of files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import gradio as gr

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


class FileComponent(gr.HTML):  # type: ignore[misc]  # Gradio has no types
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
        files = self._files_url()
        script = json.dumps(f"{files}/components/{name}/{name}.js")
        loader = json.dumps(f"{files}/shared/component.js")
        classes = [elem_classes] if isinstance(elem_classes, str) else elem_classes or []
        styles = ("shared/base.css", *self.STYLES, f"components/{name}/{name}.css")
        super().__init__(
            value,
            html_template=file.with_suffix(".html").read_text(encoding="utf-8"),
            js_on_load=f"""
                const at = (path) => new URL(path, document.baseURI).href;
                import(at({loader})).then(({{ load }}) =>
                  load({json.dumps(name)}, at({script}), {{ element, trigger, props, watch }}));
            """,
            head="".join(f'<link rel="stylesheet" href="{files}/{style}">' for style in styles),
            apply_default_css=False,
            elem_id=elem_id,
            elem_classes=["dm-component", f"dm-component-{name}", *classes],
            visible=visible,
            render=render,
            **props,
        )

    @staticmethod
    def _files_url() -> str:
        if (url := _files_url.get()) is not None:
            return url
        gr.set_static_paths([_UI_DIR])
        return f"gradio_api/file={_UI_DIR}"
