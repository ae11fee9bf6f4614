"""Proposed articles of the knowledge base. Plain data; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

MAX_BODY_CHARS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArticleView:
    """An article that waits to be published. No search finds it."""

    id: str
    collection: str
    title: str
    body: str  #: Markdown without the title
    author: str  #: name of the user who proposed it
    created_at: datetime
    updated_at: datetime
