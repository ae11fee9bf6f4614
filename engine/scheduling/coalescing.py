"""How long a delta may wait for the deltas of other replies, so that they reach their readers together."""

from __future__ import annotations

HOLD_SECONDS_PER_READER = 0.0006
"""For each reader in flight a delta may wait so long for others: what passing one on takes, several times."""
MAX_HOLD_SECONDS = 0.025
"""An eye does not see it."""


def max_hold_seconds(num_readers: int) -> float:
    """Seconds that a delta may wait for others while so many read."""
    return min(MAX_HOLD_SECONDS, HOLD_SECONDS_PER_READER * num_readers)
