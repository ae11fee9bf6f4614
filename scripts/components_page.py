"""Writes the reference of the Gradio components in docs/components.md from their classes. Run by ``make docs``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

from app.ui import components
from app.ui.components.component import FileComponent
from scripts.markdown_table import markdown_table

#: What every Gradio component takes.
_COMMON = frozenset({"self", "elem_id", "elem_classes", "visible", "render", "props"})
#: The headings in the docstring of a constructor.
_HEADINGS = re.compile(r"^(Args|Raises|Returns):$", re.MULTILINE)
_ENTRY = re.compile(r"^( *)(\w+): (.*(?:\n\1 +.*)*)", re.MULTILINE)


def components_reference() -> str:
    """Returns what each component shows, its props and its events.

    Raises:
        ValueError: a prop is not documented, or the documentation names one that does not exist.
    """
    return "\n\n".join(_component(getattr(components, name)) for name in components.__all__)


def _component(component: type[FileComponent]) -> str:
    parts = [f"### {component.__name__}", _paragraphs(inspect.getdoc(component) or "")]
    if props := list(_props(component)):
        parts.append(markdown_table(("Prop", "Default", "Meaning"), props))
    if events := [
        (f"`{event}`", _line(event.doc)) for event in component.__dict__.get("EVENTS", []) if event != "change"
    ]:
        parts.append(markdown_table(("Event", "Raised when"), events))
    return "\n\n".join(parts)


def _props(component: type[FileComponent]) -> Iterable[tuple[str, str, str]]:
    if "__init__" not in component.__dict__:
        return
    constructor = component.__dict__["__init__"]
    documented = _documented(inspect.getdoc(constructor) or "")
    parameters = {name: p for name, p in inspect.signature(constructor).parameters.items() if name not in _COMMON}
    if unknown := set(documented) ^ set(parameters):
        raise ValueError(f"{component.__name__}: parameter and documentation differ in {', '.join(sorted(unknown))}.")
    for name, parameter in parameters.items():
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        meaning = documented[name]
        yield f"`{name}`", default, meaning[:1].upper() + meaning[1:]


def _documented(docstring: str) -> dict[str, str]:
    """Returns the entries below ``Args:``."""
    sections = _HEADINGS.split(docstring)
    entries = dict(zip(sections[1::2], sections[2::2], strict=True)).get("Args", "")
    return {name: _line(text) for _, name, text in _ENTRY.findall(entries)}


def _paragraphs(text: str) -> str:
    return "\n\n".join(_line(paragraph) for paragraph in text.split("\n\n"))


def _line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
