"""Reads the questions that sources left unanswered, of all users, for reviewers; and takes them off the list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from app.domain.audit import AuditAction
from app.domain.feedback import Rating
from app.domain.gaps import GapQuestion, GapReason, GapState
from app.domain.knowledge import MAX_QUERY_CHARS
from app.errors import NotFound
from app.store.db.case_models import Inbox, InboxMember
from app.store.db.database import Database
from app.store.db.desk_models import Feedback
from app.store.db.knowledge_models import Collection, Gap
from app.store.db.models import Account, Conversation, Message
from app.store.db.rows import change_rows, is_id, shown_name
from app.store.desk.audit import add_event
from app.store.knowledge.access import is_admin, may_use

MAX_QUESTIONS = 2000
"""The latest questions that are listed."""


class GapRecords:
    """The repository of unanswered questions.

    A reviewer sees those that were asked of collections which the reviewer may use. Of collections that are gone there
    are no rights left to ask: their questions are for admins only, as replies that rest on removed documents are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self, reviewer_id: str, state: GapState, limit: int = MAX_QUESTIONS
    ) -> tuple[list[GapQuestion], bool]:
        """The latest questions in this state, latest first; and whether there are older ones."""

        def work(session: Session) -> tuple[list[GapQuestion], bool]:
            question, disliked = aliased(Message), aliased(Feedback)
            in_review = exists().where(disliked.message_id == Message.id, disliked.rating == Rating.DOWN)
            rows = session.execute(
                select(
                    Gap.message_id,
                    Gap.conversation_id,
                    Gap.reason,
                    Gap.collections,
                    Gap.created_at,
                    func.substr(question.content, 1, MAX_QUERY_CHARS).label("question"),
                    Conversation.user_id,
                    shown_name(Account).label("user"),
                    in_review.label("in_review"),
                )
                .join(Message, Message.id == Gap.message_id)
                .join(question, question.id == Message.parent_id)
                .join(Conversation, Conversation.id == Gap.conversation_id)
                .join(Account, Account.id == Conversation.user_id)
                .where(
                    Gap.done_at.is_(None) if state is GapState.OPEN else Gap.done_at.is_not(None),
                    Message.deletion.is_(None),
                    Conversation.deletion.is_(None),
                    or_(Account.kind == "person", _reads_cases(reviewer_id)),
                )
                .order_by(Gap.created_at.desc(), Gap.message_id.desc(), Gap.reason)
                .limit(limit + 1)
            ).all()
            reads_all = session.scalar(select(is_admin(reviewer_id))) is True
            usable = set(session.scalars(select(Collection.id).where(may_use(reviewer_id))))
            found: dict[str, GapQuestion] = {}
            for row in rows[:limit]:
                if not reads_all and not (row.collections and usable.issuperset(row.collections)):
                    continue
                before = found.get(row.message_id)
                found[row.message_id] = GapQuestion(
                    message_id=row.message_id,
                    conversation_id=row.conversation_id,
                    question=row.question,
                    user=row.user,
                    at=row.created_at if before is None else max(before.at, row.created_at),
                    reasons=(*(before.reasons if before else ()), GapReason(row.reason)),
                    collections=tuple(row.collections),
                    own=row.user_id == reviewer_id,
                    in_review=bool(row.in_review),
                )
            return list(found.values()), len(rows) > limit

        return await self._database.read(work)

    async def mark(self, admin_id: str, message_ids: Sequence[str], *, done: bool) -> int:
        """Takes questions off the list, or puts them back; returns how many changed.

        Raises:
            NotFound: none of them is a question that sources left unanswered.
        """
        ids = sorted({id for id in message_ids if is_id(id)})

        def work(session: Session) -> int:
            here = Gap.message_id.in_(ids)
            if session.scalar(select(func.count()).select_from(Gap).where(here)) == 0:
                raise NotFound("There are no such questions. Their conversations may have been deleted.")
            now = datetime.now(UTC)
            changed = change_rows(
                session,
                update(Gap)
                .where(here, Gap.done_at.is_(None) if done else Gap.done_at.is_not(None))
                .values(done_at=now if done else None, done_by=admin_id if done else None),
            )
            if changed:
                add_event(session, admin_id, AuditAction.GAP_MARKED, ids[0], done=done, questions=changed)
            return changed

        return await self._database.write(work)


def _reads_cases(reviewer_id: str) -> ColumnElement[bool]:
    """Whether the query's conversation is a case of an inbox that the reviewer is a member of, or an admin of all."""
    member = exists().where(
        Inbox.user_id == Conversation.user_id, InboxMember.inbox_id == Inbox.id, InboxMember.user_id == reviewer_id
    )
    return or_(is_admin(reviewer_id), member)
