"""What is wrong with a conversation in a file. Whoever reads the file adds where in it the conversation stands."""

from __future__ import annotations


class BrokenConversation(ValueError):
    """``field`` is the place in the conversation, such as ``messages[3].parent_id``; ``reason`` says what is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
