"""Owners of Gradio sessions.

Gradio hands a session's output to any client that sends its ``session_hash``; this register makes a hash
worthless to all users but the one who sent it first.
"""

from __future__ import annotations

from collections import OrderedDict


class SessionOwners:
    """``session_hash`` → user id, for the ``capacity`` most recently used sessions."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._capacity = capacity

    def claim(self, session_hash: str, user_id: str) -> bool:
        """Whether the session is this user's. An unknown session becomes theirs."""
        owner = self._owners.setdefault(session_hash, user_id)
        self._owners.move_to_end(session_hash)
        if len(self._owners) > self._capacity:
            self._owners.popitem(last=False)
        return owner == user_id
