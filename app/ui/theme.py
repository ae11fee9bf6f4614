"""Gradio theme with system fonts, and the page's ``head``. Colours are defined in ``shared/base.css``."""

from __future__ import annotations

import gradio as gr

_SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Ubuntu", "Cantarell", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Liberation Mono", "monospace"]
#: Stylesheets in cascade order: a later one overrides an earlier one.
STYLES = (
    "shared/base.css",
    "pages/chat/layout.css",
    "components/conversations/conversations.css",
    "components/chat/chat.css",
    "components/chat/feedback.css",
    "components/composer/composer.css",
    "components/settings/settings.css",
    "components/model/model.css",
    "components/header/header.css",
)
HEAD = "\n".join(
    [
        '<meta name="color-scheme" content="light dark">',
        *(f'<link rel="stylesheet" href="/ui/static/{name}">' for name in STYLES),
    ]
)


def page_theme() -> gr.themes.Base:
    """Return Gradio's base theme without web fonts, so the page loads nothing from another origin."""
    return gr.themes.Base(font=_SANS, font_mono=_MONO)
