"""Owners of Gradio sessions.

Gradio hands a session's output to any client that sends its ``session_hash``; this register makes a hash
worthless to all callers but the one who sent it first.
"""

from __future__ import annotations

from collections import OrderedDict

from app.auth.identity import Identity


class SessionOwners:
    """``session_hash`` → owner, for the ``capacity`` most recently used sessions.

    The owner is a user in their browsers, or one of their API keys: a key must not read what the page of its user
    receives, nor what another key receives. A browser's sessions outlive its sign-in, so that an open page goes on
    after the user signs in again.
    """

    def __init__(self, capacity: int = 100_000) -> None:
        self._owners: OrderedDict[str, tuple[str, str | None]] = OrderedDict()
        self._capacity = capacity

    def claim(self, session_hash: str, identity: Identity) -> bool:
        """Whether the session is this caller's. An unknown session becomes theirs."""
        caller = identity.user_id, identity.key_id
        owner = self._owners.setdefault(session_hash, caller)
        self._owners.move_to_end(session_hash)
        if len(self._owners) > self._capacity:
            self._owners.popitem(last=False)
        return owner == caller
