"""Owners of Gradio sessions.

Gradio hands a session's output to any client that sends its ``session_hash``; this register makes a hash
worthless to all callers but the one who sent it first.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from app.auth.identity import Identity

#: What a session_hash may be. Gradio's own are 11 letters and digits, gradio_client's are UUIDs. Gradio and this
#: register keep thousands of them, so they are short. Gradio splits the names of its tasks at "<gradio-sep>": a hash
#: that holds this would break every user's /cancel.
_SESSION_HASH = re.compile(r"[A-Za-z0-9_. -]{1,128}")


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
        """Whether the session is this caller's. An unknown session becomes theirs, if its hash is a valid one."""
        if _SESSION_HASH.fullmatch(session_hash) is None:
            return False
        caller = identity.user_id, identity.key_id
        owner = self._owners.setdefault(session_hash, caller)
        self._owners.move_to_end(session_hash)
        if len(self._owners) > self._capacity:
            self._owners.popitem(last=False)
        return owner == caller
