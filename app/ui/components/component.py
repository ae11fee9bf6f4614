"""The base of this package's Gradio components: subclasses of ``gr.HTML`` made of files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import gradio as gr
from gradio.events import EventListener

from app.ui.component_files import SCRIPT_ROOT, import_module, stylesheet_urls
from app.ui.gradio_patches import without_type_stubs
from app.ui.theme import SHARED_STYLES


def quiet_event(name: str, doc: str) -> EventListener:
    """Return an event whose listeners leave the component usable: Gradio does not gray it out while they run."""
    return EventListener(name, show_progress="hidden", doc=doc)


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
        styles = stylesheet_urls((*SHARED_STYLES, *self.STYLES, f"components/{name}/{name}.css"))
        classes = [elem_classes] if isinstance(elem_classes, str) else elem_classes or []
        super().__init__(
            value,
            html_template=file.with_suffix(".html").read_text(encoding="utf-8"),
            js_on_load=_LOAD.format(
                root=SCRIPT_ROOT,
                name=json.dumps(name),
                loader=import_module("shared/component.js"),
                module=import_module(f"components/{name}/{name}.js"),
                styles=json.dumps(styles),
            ),
            apply_default_css=False,
            elem_id=elem_id,
            elem_classes=["dm-component", f"dm-component-{name}", *classes],
            visible=visible,
            render=render,
            **props,
        )

    def validate(self, value: Any) -> Any:
        """Returns ``value``, checked: from the browser for a listener, or what a listener has returned.

        Raises:
            ValueError: the component cannot show it.
        """
        return value

    def preprocess(self, payload: Any) -> Any:
        return self.validate(payload)

    def postprocess(self, value: Any) -> Any:
        return self.validate(value)

    def example_value(self) -> Any:
        return self.example_payload()


_LOAD = """
    {root}
    {loader}
      .then(({{ load }}) => load({name}, {module}, {styles}.map(at), {{ element, trigger, props, watch }}))
      .catch((error) => console.error(error));
"""
