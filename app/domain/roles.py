"""User roles and their permissions."""

from __future__ import annotations

from enum import StrEnum


class UserRole(StrEnum):
    """The role of an account. No role gives access to another user's conversations."""

    ADMIN = "admin"  #: full access, including accounts
    AGENT = "agent"  #: chats
    VIEWER = "viewer"  #: read-only

    @property
    def may_write(self) -> bool:
        """Whether the user may send messages and change their own data."""
        return self is not UserRole.VIEWER

    @property
    def may_read_desk(self) -> bool:
        """Whether the user may see usage and the replies to review."""
        return self is not UserRole.AGENT
