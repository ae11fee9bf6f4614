"""A user's feedback on a reply: a thumb, reasons, and a comment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.text import clean_text
from app.errors import InvalidInput

MAX_COMMENT_CHARS = 2000


class Rating(StrEnum):
    UP = "up"
    DOWN = "down"


class Reason(StrEnum):
    """Reasons for a rating. The first three go with a thumb up, the others with a thumb down."""

    CORRECT = "correct"
    HELPFUL = "helpful"
    CLEAR = "clear"
    WRONG = "wrong"
    OFF_TOPIC = "off_topic"
    INCOMPLETE = "incomplete"
    UNCLEAR = "unclear"
    TOO_LONG = "too_long"
    TONE = "tone"


REASONS: dict[Rating, tuple[Reason, ...]] = {
    Rating.UP: (Reason.CORRECT, Reason.HELPFUL, Reason.CLEAR),
    Rating.DOWN: (Reason.WRONG, Reason.OFF_TOPIC, Reason.INCOMPLETE, Reason.UNCLEAR, Reason.TOO_LONG, Reason.TONE),
}


@dataclass(frozen=True, slots=True)
class Opinion:
    """One user's rating of one reply."""

    rating: Rating
    reasons: tuple[Reason, ...] = ()
    comment: str = ""

    def checked(self) -> Opinion:
        """Validates the feedback and returns it in stored form: reasons unique and in a fixed order, a clean comment.

        Raises:
            InvalidInput: a reason does not go with the rating, or the comment is too long.
        """
        fitting = REASONS[self.rating]
        for reason in self.reasons:
            if reason not in fitting:
                raise InvalidInput(
                    f"The reason '{reason}' does not go with a thumb {self.rating}. There are: {', '.join(fitting)}."
                )
        comment = clean_text(self.comment).strip()
        if len(comment) > MAX_COMMENT_CHARS:
            raise InvalidInput(
                f"This comment is {len(comment):,} characters long; at most {MAX_COMMENT_CHARS:,} are allowed."
            )
        return Opinion(self.rating, tuple(reason for reason in fitting if reason in self.reasons), comment)


@dataclass(frozen=True, slots=True)
class FeedbackView:
    """Feedback as it is shown."""

    rating: Rating
    reasons: tuple[Reason, ...]
    comment: str
    updated_at: datetime
