"""An adapter as the scheduler knows it: it chooses the weights of a request, and separates its cached blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Adapter:
    """A loaded adapter. Requests keep it until they end, so that it can be unloaded while they run."""

    name: str
    content_id: bytes  #: 16 bytes that depend on its weights; requests share cached blocks only if they are equal
