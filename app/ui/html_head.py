"""Adds tags to the ``<head>`` of the HTML that Gradio serves, which Gradio has no setting for.

Gradio inserts its ``head`` argument only after its own scripts have run, several round trips later. The stylesheets
must be applied that late, to follow Gradio's own, but they and the page's modules can be preloaded from the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import gradio.routes
from jinja2 import BaseLoader, Environment

from app.ui.static_files import STATIC_DIR
from app.ui.theme import STYLES

_PAGE = "frontend/index.html"
_END = "</head>"
_IMPORT = re.compile(r'^(?:import|export)\b[^;"]*"(\.[^"]+)";', re.MULTILINE)


def find_modules(*entries: str) -> list[str]:
    """Return these modules and those that they import, directly or not: sorted paths relative to this package."""
    root = STATIC_DIR.resolve()
    found: set[str] = set()
    to_read = [root / entry for entry in entries]
    while to_read:
        module = to_read.pop()
        name = module.relative_to(root).as_posix()
        if name not in found:
            found.add(name)
            to_read += [(module.parent / other).resolve() for other in _IMPORT.findall(module.read_text())]
    return sorted(found)


_COMPONENTS = ("header", "chat", "composer", "conversations", "model")
#: The modules that the page imports by itself: its own and those of its components.
ENTRIES = ("pages/chat/page.js", *(f"components/{name}/{name}.js" for name in _COMPONENTS))

HTML_HEAD = "".join(
    [
        '<script src="/ui/static/shared/gradio_clock.js"></script>',  # not deferred: must run before Gradio's scripts
        *(f'<link rel="preload" as="style" href="/ui/static/{name}" fetchpriority="low">' for name in STYLES),
        *(
            f'<link rel="modulepreload" href="/ui/static/{name}" fetchpriority="low">'
            for name in find_modules(*ENTRIES)
        ),
    ]
)


class _HtmlHeadLoader(BaseLoader):
    """Loads Gradio's templates and adds :data:`HTML_HEAD` to the end of the page's ``<head>``."""

    def __init__(self, loader: BaseLoader) -> None:
        self._loader = loader

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        source, filename, up_to_date = self._loader.get_source(environment, template)
        if template == _PAGE:
            if source.count(_END) != 1:
                raise RuntimeError(f"Gradio's {_PAGE} does not contain exactly one </head>. Adapt html_head.py.")
            source = source.replace(_END, HTML_HEAD + _END)
        return source, filename, up_to_date


def install_html_head() -> None:
    """Add :data:`HTML_HEAD` to every Gradio page of this process. Calling it again has no effect."""
    environment = gradio.routes.templates.env
    assert environment.loader is not None
    if not isinstance(environment.loader, _HtmlHeadLoader):
        environment.loader = _HtmlHeadLoader(environment.loader)
