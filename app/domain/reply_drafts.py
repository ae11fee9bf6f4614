"""Drafts of replies to customers. Plain data; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.knowledge import Citation
from app.domain.word_changes import WordChange

MAX_UNUSED = 20
"""Drafts of a conversation that are kept without having been used, the latest ones."""


class DraftChange(StrEnum):
    """How a draft is written again."""

    SHORTER = "shorter"
    FRIENDLIER = "friendlier"


class DraftUse(StrEnum):
    """What a user did with a draft."""

    COPIED = "copied"  #: to send it to the customer
    INSERTED = "inserted"  #: into the message box


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedDraft:
    """A draft that was used, for a review."""

    id: str
    conversation_id: str
    conversation_title: str
    user: str  #: name of the user who asked for it
    model: str
    message: str  #: of the customer
    change: DraftChange | None
    created_at: datetime
    used_as: DraftUse
    used_at: datetime
    changes: tuple[WordChange, ...]  #: from what the model wrote to what was used; empty if it is withheld
    citations: tuple[Citation, ...]  #: of the text as the model wrote it or as it was used
    withheld: str | None  #: why the reviewer may not read it
