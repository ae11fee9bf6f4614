"""Gaps: questions that the chosen sources left unanswered. Plain data; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.citations import cited_numbers
from app.domain.knowledge import Passage


class GapReason(StrEnum):
    """Why a question counts as unanswered."""

    NOTHING_FOUND = "nothing_found"  #: no passage matched it
    NOT_CITED = "not_cited"  #: passages matched, and the reply cites none of them: usually it says that they don't help
    DISLIKED = "disliked"  #: the reply from sources was rated down


class GapState(StrEnum):
    OPEN = "open"
    DONE = "done"


def gap_of(text: str, sources: Sequence[Passage]) -> GapReason | None:
    """Returns why a complete reply of a chat with sources leaves its question unanswered; None if it cites one."""
    if not sources:
        return GapReason.NOTHING_FOUND
    return None if any(number <= len(sources) for number in cited_numbers(text)) else GapReason.NOT_CITED


@dataclass(frozen=True, slots=True, kw_only=True)
class GapQuestion:
    """A question that was left unanswered."""

    message_id: str  #: of the reply
    conversation_id: str
    question: str  #: its beginning
    user: str  #: name of the user who asked
    at: datetime
    reasons: tuple[GapReason, ...]
    collections: tuple[str, ...]  #: ids of the collections that were searched
    own: bool  #: the reader's own, whose conversation the reader may open
    in_review: bool  #: the reply is up for review, where its conversation can be read


@dataclass(frozen=True, slots=True, kw_only=True)
class GapGroup:
    """Questions that ask for the same, latest first."""

    question: str  #: the latest
    count: int
    last_at: datetime
    collections: tuple[str, ...]  #: of all the questions
    message_ids: tuple[str, ...]  #: of all the questions
    questions: tuple[GapQuestion, ...]  #: the latest of them


@dataclass(frozen=True, slots=True, kw_only=True)
class GapList:
    groups: tuple[GapGroup, ...]  #: most frequent first
    has_more: bool  #: there are older questions, which are not counted
