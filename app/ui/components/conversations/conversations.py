"""The list of conversations."""

from __future__ import annotations

from app.ui.components.component import FileComponent


class Conversations(FileComponent):
    """The list of conversations, with search, tags, archive, export and import."""
