"""What a browser is told in the page's HTML itself, which Gradio has no setting for.

Gradio adds what it is given as ``head`` once its own scripts have run, several round trips later. The stylesheets have
to come that late, behind Gradio's own; asking for them and for the page's modules does not.
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


def find_modules(first: str) -> list[str]:
    """The modules that one of ``static/`` needs, itself among them: paths below ``static/``, sorted."""
    root = STATIC_DIR.resolve()
    found: set[str] = set()
    to_read = [root / first]
    while to_read:
        module = to_read.pop()
        name = module.relative_to(root).as_posix()
        if name not in found:
            found.add(name)
            to_read += [(module.parent / other).resolve() for other in _IMPORT.findall(module.read_text())]
    return sorted(found)


HTML_HEAD = "".join(
    [
        '<script src="/ui/static/gradio_clock.js"></script>',  # not deferred: it has to be there before Gradio's
        *(f'<link rel="preload" as="style" href="/ui/static/{name}" fetchpriority="low">' for name in STYLES),
        *(
            f'<link rel="modulepreload" href="/ui/static/{name}" fetchpriority="low">'
            for name in find_modules("app.js")
        ),
    ]
)


class _HtmlHeadLoader(BaseLoader):
    """Gradio's templates, the page's with :data:`HTML_HEAD` at the end of its head."""

    def __init__(self, loader: BaseLoader) -> None:
        self._loader = loader

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        source, filename, up_to_date = self._loader.get_source(environment, template)
        if template == _PAGE:
            if source.count(_END) != 1:
                raise RuntimeError(f"Gradio's {_PAGE} has no end of a head any more: where do we add ours?")
            source = source.replace(_END, HTML_HEAD + _END)
        return source, filename, up_to_date


def install_html_head() -> None:
    """For all pages of Gradio's in this process, once."""
    environment = gradio.routes.templates.env
    assert environment.loader is not None
    if not isinstance(environment.loader, _HtmlHeadLoader):
        environment.loader = _HtmlHeadLoader(environment.loader)
