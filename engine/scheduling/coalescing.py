"""Limits how long a delta is held, so that the deltas of several replies are delivered together.

This is for the engine's own sake, and so grows with the number of readers: one that reads alone gets each token by
itself. Readers that want fewer and larger pieces merge them as they read.
"""

from __future__ import annotations

HOLD_SECONDS_PER_READER = 0.0006
"""Hold time allowed for each reader in flight, in seconds: several times the cost of forwarding one delta."""
MAX_HOLD_SECONDS = 0.03
"""Upper bound on the hold time, in seconds: too short for a user to notice."""


def max_hold_seconds(num_readers: int) -> float:
    """Returns how many seconds a delta may be held while ``num_readers`` readers are in flight."""
    return min(MAX_HOLD_SECONDS, HOLD_SECONDS_PER_READER * num_readers)
