"""Limits of the knowledge base."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeLimits:
    """Limits of one collection; None is no limit."""

    max_documents: int | None = None
    max_bytes: int | None = None  #: of the files of all versions
