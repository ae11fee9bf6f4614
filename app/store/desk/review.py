"""Replies to review, of all users: low rated ones, and questions that got no answer.

Loads the text of shown replies only. Replies without a flag cannot be read here: no reviewer may browse other users'
conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Select, delete, exists, func, select, text, union
from sqlalchemy.orm import Session, aliased

from app.domain.audit import AuditAction
from app.domain.feedback import Rating
from app.domain.review import Exchange, ExchangeMessage, Flag, GivenOpinion, ReviewItem, ReviewState
from app.domain.usage import Span
from app.domain.views import MessageStatus, Page, Role
from app.errors import InvalidInput, NotFound
from app.store.chat.feedback import feedback_view
from app.store.chat.tree import path_to
from app.store.db.database import Database
from app.store.db.desk_models import Feedback, Review
from app.store.db.models import PERHAPS_UNANSWERED, Account, Conversation, Message, Turn
from app.store.db.rows import is_id, shown_name
from app.store.desk.audit import add_event
from app.store.desk.cursors import decode_cursor, encode_cursor

EXCERPT_CHARS = 400
BEFORE = 6  #: messages above a reply that are shown with it
MAX_PAGE = 100


WITHHELD = "This reply rests on documents that you may not read, so its text is not shown."

Withheld = Callable[[Session, str, Collection[str]], Set[str]]
"""Takes a reviewer and ids of messages; returns those of the replies whose text the reviewer may not read."""


class Reviews:
    """The repository of replies to review, of all users."""

    def __init__(self, database: Database, withheld: Withheld) -> None:
        self._database = database
        self._withheld = withheld

    async def list(
        self,
        reviewer_id: str,
        span: Span,
        *,
        flags: Collection[Flag] = tuple(Flag),
        state: ReviewState = ReviewState.OPEN,
        limit: int = 25,
        cursor: str | None = None,
    ) -> Page[ReviewItem]:
        """Replies from a time span with any of these flags, latest first.

        Args:
            cursor: the previous page's ``next_cursor``.

        Raises:
            InvalidInput: the limit or the cursor is not valid.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"limit is {limit}; it must be between 1 and {MAX_PAGE}.")
        before = decode_cursor(cursor) if cursor else None

        def work(session: Session) -> Page[ReviewItem]:
            arms = [_latest(_having(flag, span), state, before, limit + 1) for flag in dict.fromkeys(flags)]
            if not arms:
                return Page((), None)
            found = union(*arms).subquery()
            rows = session.execute(
                select(found.c.id, found.c.created_at)
                .order_by(found.c.created_at.desc(), found.c.id.desc())
                .limit(limit + 1)
            ).all()
            more = len(rows) > limit
            rows = rows[:limit]
            items = _items(session, [row.id for row in rows])
            hidden = self._withheld(session, reviewer_id, items)
            return Page(
                tuple(_readable(items[row.id], hidden) for row in rows),
                encode_cursor(rows[-1].created_at, rows[-1].id) if more else None,
            )

        return await self._database.read(work)

    async def exchange(self, reviewer_id: str, message_id: str) -> Exchange:
        """A reply to review with its surrounding messages.

        Raises:
            NotFound: there is no such reply, or it has no flag.
        """

        def work(session: Session) -> Exchange:
            item = _flagged(session, message_id)
            path = path_to(session, message_id, BEFORE + 1)
            before, reply = [message for message, _turn in path[:-1]], path[-1][0]
            others = session.scalars(
                select(Message)
                .where(Message.parent_id == reply.parent_id, Message.id != reply.id, Message.deletion.is_(None))
                .order_by(Message.id)
            ).all()
            follower = _latest_child(session, reply)
            answer = _latest_child(session, follower) if follower else None
            after = [message for message in (follower, answer) if message]
            hidden = self._withheld(session, reviewer_id, [message.id for message in (*before, reply, *others, *after)])

            def shown(messages: Iterable[Message]) -> tuple[ExchangeMessage, ...]:
                return tuple(_shown(message, hidden) for message in messages)

            return Exchange(
                item=_readable(item, hidden),
                before=shown(before),
                reply=_shown(reply, hidden),
                others=shown(others),
                after=shown(after),
                has_earlier=bool(path) and path[0][0].parent_id is not None,
            )

        return await self._database.read(work)

    async def mark(self, reviewer_id: str, message_id: str, *, reviewed: bool) -> None:
        """Marks or unmarks a reply as reviewed.

        Raises:
            NotFound: there is no such reply, or it has no flag.
        """
        now = datetime.now(UTC)

        def work(session: Session) -> None:
            _flagged(session, message_id)
            message = session.get_one(Message, message_id, with_for_update={"key_share": True})
            session.execute(delete(Review).where(Review.message_id == message.id))
            if reviewed:
                session.add(
                    Review(
                        message_id=message.id,
                        conversation_id=message.conversation_id,
                        reviewer_id=reviewer_id,
                        reviewed_at=now,
                    )
                )
            add_event(session, reviewer_id, AuditAction.REPLY_REVIEWED, message.id, reviewed=reviewed)

        await self._database.write(work)


def _having(flag: Flag, span: Span) -> Select[tuple[str, datetime]]:
    """The replies of a span with a flag."""
    replies = select(Message.id, Message.created_at).where(
        Message.created_at >= span.begins,
        Message.created_at < span.ends,
        Message.role == Role.ASSISTANT,
        Message.deletion.is_(None),
        Message.conversation_id.not_in(select(Conversation.id).where(Conversation.deletion.is_not(None))),
        Message.author_kind.is_(None),  # cases are read by the members of their inboxes
    )
    if flag is Flag.LOW_RATED:
        return replies.where(Message.id.in_(select(Feedback.message_id).where(Feedback.rating == Rating.DOWN)))
    if flag is Flag.ASKED_AGAIN:
        return replies.where(_asked_again())
    perhaps = select(Turn.message_id).where(
        text(f"({PERHAPS_UNANSWERED})"), Turn.created_at >= span.begins, Turn.created_at < span.ends
    )
    return replies.where(Message.id.in_(perhaps), _STATUS_OF[flag])


_STATUS_OF: dict[Flag, ColumnElement[bool]] = {
    Flag.FAILED: Message.status == MessageStatus.ERROR,
    Flag.INTERRUPTED: Message.status == MessageStatus.INTERRUPTED,
    Flag.EMPTY: (Message.status == MessageStatus.COMPLETE) & (func.trim(Message.content) == ""),
}


def _asked_again() -> ColumnElement[bool]:
    """The message has a later sibling reply."""
    later = aliased(Message)
    return exists().where(
        later.parent_id == Message.parent_id,
        later.id > Message.id,
        later.role == Role.ASSISTANT,
        later.deletion.is_(None),
    )


def _latest(
    replies: Select[tuple[str, datetime]], state: ReviewState, before: tuple[datetime, str] | None, limit: int
) -> Select[tuple[str, datetime]]:
    """The latest replies in this state. Applied per flag, so that no flag's query runs to its end for another flag."""
    if state is not ReviewState.ALL:
        reviewed = exists().where(Review.message_id == Message.id)
        replies = replies.where(reviewed if state is ReviewState.REVIEWED else ~reviewed)
    if before is not None:
        at, id = before
        replies = replies.where((Message.created_at < at) | ((Message.created_at == at) & (Message.id < id)))
    found = replies.order_by(Message.created_at.desc(), Message.id.desc()).limit(limit).subquery()
    return select(found.c.id, found.c.created_at)


def _flagged(session: Session, message_id: str) -> ReviewItem:
    item = _items(session, [message_id]).get(message_id) if is_id(message_id) else None
    if item is None or not item.flags:
        raise NotFound("There is no such reply to review. It may have been deleted, or its feedback taken back.")
    return item


def _items(session: Session, ids: Sequence[str]) -> dict[str, ReviewItem]:
    question, reviewer = aliased(Message), aliased(Account)
    rows = session.execute(
        select(
            Message.id,
            Message.created_at,
            Message.status,
            func.substr(Message.content, 1, EXCERPT_CHARS).label("reply"),
            func.substr(question.content, 1, EXCERPT_CHARS).label("question"),
            _asked_again().label("asked_again"),
            Turn.model,
            Turn.error,
            Conversation.title,
            shown_name(Account).label("user"),
            Review.reviewed_at,
            shown_name(reviewer).label("reviewed_by"),
        )
        .join(Conversation, (Conversation.id == Message.conversation_id) & Conversation.deletion.is_(None))
        .join(Account, Account.id == Conversation.user_id)
        .join(question, question.id == Message.parent_id)
        .outerjoin(Turn, Turn.message_id == Message.id)
        .outerjoin(Review, Review.message_id == Message.id)
        .outerjoin(reviewer, reviewer.id == Review.reviewer_id)
        .where(
            Message.id.in_(ids),
            Message.role == Role.ASSISTANT,
            Message.deletion.is_(None),
            Message.author_kind.is_(None),
        )
    ).all()
    opinions = _opinions(session, ids)
    return {
        row.id: ReviewItem(
            message_id=row.id,
            conversation_title=row.title,
            user=row.user,
            model=row.model,
            created_at=row.created_at,
            status=MessageStatus(row.status),
            error=row.error,
            flags=tuple(_flags(row.status, row.reply, row.asked_again, opinions.get(row.id, ()))),
            question=row.question,
            reply=row.reply,
            opinions=tuple(opinions.get(row.id, ())),
            reviewed_by=row.reviewed_by,
            reviewed_at=row.reviewed_at,
        )
        for row in rows
    }


def _flags(status: str, reply: str, asked_again: bool, opinions: Sequence[GivenOpinion]) -> Iterator[Flag]:
    if any(opinion.rating is Rating.DOWN for opinion in opinions):
        yield Flag.LOW_RATED
    if status == MessageStatus.ERROR:
        yield Flag.FAILED
    if status == MessageStatus.INTERRUPTED:
        yield Flag.INTERRUPTED
    if status == MessageStatus.COMPLETE and not reply.strip(" "):
        yield Flag.EMPTY
    if asked_again:
        yield Flag.ASKED_AGAIN


def _opinions(session: Session, ids: Sequence[str]) -> dict[str, list[GivenOpinion]]:
    rows = session.execute(
        select(Feedback, shown_name(Account))
        .join(Account, Account.id == Feedback.user_id)
        .where(Feedback.message_id.in_(ids))
        .order_by(Feedback.updated_at)
    )
    found: dict[str, list[GivenOpinion]] = {}
    for row, name in rows:
        view = feedback_view(row)
        found.setdefault(row.message_id, []).append(
            GivenOpinion(name, view.rating, view.reasons, view.comment, view.updated_at)
        )
    return found


def _latest_child(session: Session, message: Message) -> Message | None:
    return session.scalars(
        select(Message)
        .where(Message.parent_id == message.id, Message.deletion.is_(None))
        .order_by(Message.id.desc())
        .limit(1)
    ).one_or_none()


def _shown(message: Message, hidden: Collection[str]) -> ExchangeMessage:
    is_hidden = message.id in hidden
    return ExchangeMessage(
        id=message.id,
        role=Role(message.role),
        content=WITHHELD if is_hidden and message.content else message.content,
        status=MessageStatus(message.status),
        created_at=message.created_at,
        reasoning="" if is_hidden else message.reasoning or "",
    )


def _readable(item: ReviewItem, hidden: Collection[str]) -> ReviewItem:
    return replace(item, reply=WITHHELD) if item.message_id in hidden and item.reply else item
