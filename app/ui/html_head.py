"""Tags that let the browser preload the page's script and stylesheet, for the ``<head>`` of the HTML.

The stylesheet must be applied late, to follow Gradio's own, but it and the script can be preloaded from the start.
"""

from __future__ import annotations

from functools import partial

from app.ui.joined_files import JoinedFile, find_modules, join_modules, join_styles
from app.ui.static_files import FILES_URL, STATIC_DIR
from app.ui.theme import PAGE_STYLE, STYLES

_COMPONENTS = ("header", "chat", "composer", "conversations", "model", "model_menu")
#: The modules that the page imports by itself: its own, those of its components, and what Gradio's listeners call.
ENTRIES = ("pages/chat/page.js", *(f"components/{name}/{name}.js" for name in _COMPONENTS), "shared/component.js")
#: All modules of the page as one script, below ``FILES_URL``.
PAGE_SCRIPT = "chat_page.js"

#: What the page loads as one file, by its path below ``FILES_URL``.
JOINED_FILES = {
    PAGE_SCRIPT: JoinedFile(
        "text/javascript",
        STATIC_DIR,
        partial(find_modules, STATIC_DIR, ENTRIES),
        partial(join_modules, STATIC_DIR, ENTRIES),
    ),
    PAGE_STYLE: JoinedFile("text/css", STATIC_DIR, lambda: STYLES, partial(join_styles, STATIC_DIR, STYLES)),
}

#: Applies the theme and the text size that the browser keeps.
APPEARANCE = f'<script src="{FILES_URL}/shared/appearance_now.js"></script>'
PRELOADS = "".join(
    [
        APPEARANCE,  # first: nothing is drawn before it has run
        f'<link rel="preload" as="style" href="{FILES_URL}/{PAGE_STYLE}" fetchpriority="low">',
        f'<link rel="modulepreload" href="{FILES_URL}/{PAGE_SCRIPT}" fetchpriority="low">',
    ]
)
