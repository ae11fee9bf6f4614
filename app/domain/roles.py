"""What a person may do here."""

from __future__ import annotations

from enum import StrEnum


class UserRole(StrEnum):
    """Of an account. Nobody sees another's conversations, whatever the role."""

    ADMIN = "admin"  #: everything, and the accounts
    AGENT = "agent"  #: chats
    VIEWER = "viewer"  #: reads, and changes nothing

    @property
    def may_write(self) -> bool:
        """Whether they send messages and change what is theirs."""
        return self is not UserRole.VIEWER

    @property
    def may_oversee(self) -> bool:
        """Whether they see how the desk is used, and the replies that want a review."""
        return self is not UserRole.AGENT
