"""Limits how long a delta is held, so that the deltas of several replies are delivered together."""

from __future__ import annotations

HOLD_SECONDS_PER_READER = 0.0006
"""Hold time allowed for each reader in flight, in seconds: several times the cost of forwarding one delta."""
MAX_HOLD_SECONDS = 0.025
"""Upper bound on the hold time, in seconds: too short for a user to notice."""


def max_hold_seconds(num_readers: int) -> float:
    """Returns how many seconds a delta may be held while ``num_readers`` readers are in flight."""
    return min(MAX_HOLD_SECONDS, HOLD_SECONDS_PER_READER * num_readers)
