"""Tags that let the browser preload the page's stylesheets and modules, for the ``<head>`` of the HTML.

The stylesheets must be applied late, to follow Gradio's own, but they and the modules can be preloaded from the start.
"""

from __future__ import annotations

import re

from app.ui.static_files import FILES_URL, STATIC_DIR
from app.ui.theme import STYLES

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
            to_read += [(module.parent / other).resolve() for other in _IMPORT.findall(module.read_text("utf-8"))]
    return sorted(found)


_COMPONENTS = ("header", "chat", "composer", "conversations", "model", "model_menu")
#: The modules that the page imports by itself: its own and those of its components.
ENTRIES = ("pages/chat/page.js", *(f"components/{name}/{name}.js" for name in _COMPONENTS))

#: Applies the theme and the text size that the browser keeps.
APPEARANCE = f'<script src="{FILES_URL}/shared/appearance_now.js"></script>'
PRELOADS = "".join(
    [
        APPEARANCE,  # first: nothing is drawn before it has run
        *(f'<link rel="preload" as="style" href="{FILES_URL}/{name}" fetchpriority="low">' for name in STYLES),
        *(
            f'<link rel="modulepreload" href="{FILES_URL}/{name}" fetchpriority="low">'
            for name in find_modules(*ENTRIES)
        ),
    ]
)
