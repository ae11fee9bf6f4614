"""The message box."""

from __future__ import annotations

from app.ui.components.component import FileComponent


class Composer(FileComponent):
    """The box for a message, with the buttons that send it, stop a reply and insert a canned reply."""
