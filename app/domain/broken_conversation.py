"""The error for an invalid conversation in a file. The file's reader adds the conversation's position."""

from __future__ import annotations


class BrokenConversation(ValueError):
    """An invalid field. ``field`` is its path, such as ``messages[3].parent_id``; ``reason`` says what is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
