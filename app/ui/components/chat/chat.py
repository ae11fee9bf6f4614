"""The messages of a conversation."""

from __future__ import annotations

from typing import ClassVar

from app.ui.components.component import FileComponent


class Chat(FileComponent):
    """The messages of a conversation, with a welcome screen for an empty one."""

    STYLES: ClassVar = ("components/chat/feedback.css",)
