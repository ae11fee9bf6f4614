"""How loading reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with a description of the current activity and its progress, 0 to 1."""
