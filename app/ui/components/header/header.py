"""The bar above the chat: title, state, account menu, and buttons for the side panels."""

from __future__ import annotations

from app.ui.components.component import FileComponent


class Header(FileComponent):
    """The bar above the chat."""
