"""Which user opened which Gradio session.

Gradio hands a session's output to whoever names its ``session_hash``; this register makes the hash
worth nothing to anybody but the user who named it first.
"""

from __future__ import annotations

from collections import OrderedDict


class SessionOwners:
    """``session_hash`` → user id, for the most recently seen sessions."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._capacity = capacity

    def claim(self, session_hash: str, user_id: str) -> bool:
        """True when the session is this user's, which it becomes when nobody has named it before."""
        owner = self._owners.setdefault(session_hash, user_id)
        self._owners.move_to_end(session_hash)
        if len(self._owners) > self._capacity:
            self._owners.popitem(last=False)
        return owner == user_id
