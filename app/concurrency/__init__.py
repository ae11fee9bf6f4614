"""Helpers for threads and tasks: background tasks, timeouts, CPU affinity."""
