"""Replies in flight: a task owns each turn, readers attach at an offset, a clock checkpoints."""
