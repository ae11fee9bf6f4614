"""Gradio theme with system fonts, and the page's ``head``. Colours are defined in ``static/base.css``."""

from __future__ import annotations

import gradio as gr

_SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Ubuntu", "Cantarell", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Liberation Mono", "monospace"]
#: Stylesheets in cascade order: a later one overrides an earlier one.
STYLES = (
    "base.css",
    "layout.css",
    "conversations.css",
    "messages.css",
    "feedback.css",
    "canned.css",
    "settings.css",
    "model.css",
    "account_menu.css",
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
