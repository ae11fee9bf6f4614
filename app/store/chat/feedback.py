"""Users' feedback on replies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.domain.feedback import FeedbackView, Opinion, Rating, Reason
from app.domain.views import MessageStatus, Role
from app.errors import Conflict, InvalidInput
from app.store.chat.gap_writes import write_disliked
from app.store.db.database import Database
from app.store.db.desk_models import Feedback, Review
from app.store.db.rows import owned_message


class FeedbackRecords:
    """The repository of feedback: one rating per user and reply. Every query takes the user's id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, user_id: str, message_id: str, opinion: Opinion) -> FeedbackView:
        """Saves the user's feedback, replacing any earlier one, and clears the reply's review mark.

        Raises:
            NotFound: the reply is missing or another user's.
            InvalidInput: the message is not a reply, or the feedback is not valid.
            Conflict: it is still being written.
        """
        opinion = opinion.checked()
        now = datetime.now(UTC)

        def work(session: Session) -> FeedbackView:
            message = owned_message(session, user_id, message_id)
            if message.role != Role.ASSISTANT:
                raise InvalidInput("Only replies can be rated.")
            if message.status == MessageStatus.STREAMING:
                raise Conflict("This reply is still being written. Rate it when it has ended.")
            row = session.get(Feedback, (message.id, user_id), with_for_update=True)
            if row is None:
                row = Feedback(
                    message_id=message.id, user_id=user_id, conversation_id=message.conversation_id, created_at=now
                )
                session.add(row)
            row.rating, row.reasons, row.comment = opinion.rating, list(opinion.reasons), opinion.comment
            row.updated_at = now
            session.execute(delete(Review).where(Review.message_id == message.id))
            write_disliked(session, message, disliked=opinion.rating is Rating.DOWN)
            return feedback_view(row)

        return await self._database.write(work)

    async def remove(self, user_id: str, message_id: str) -> None:
        """Deletes the user's feedback, if there is any.

        Raises:
            NotFound: the reply is missing or another user's.
        """

        def work(session: Session) -> None:
            message = owned_message(session, user_id, message_id)
            session.execute(delete(Feedback).where(Feedback.message_id == message.id, Feedback.user_id == user_id))
            write_disliked(session, message, disliked=False)

        await self._database.write(work)


def feedback_of(session: Session, user_id: str, message_ids: Sequence[str]) -> dict[str, FeedbackView]:
    """The user's feedback by message id."""
    if not message_ids:
        return {}
    rows = session.scalars(select(Feedback).where(Feedback.message_id.in_(message_ids), Feedback.user_id == user_id))
    return {row.message_id: feedback_view(row) for row in rows}


def feedback_view(row: Feedback) -> FeedbackView:
    return FeedbackView(
        rating=Rating(row.rating),
        reasons=tuple(Reason(reason) for reason in row.reasons),
        comment=row.comment,
        updated_at=row.updated_at,
    )
