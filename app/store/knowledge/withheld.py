"""Replies and drafts that a reviewer may not read: they may quote documents of collections the reviewer may not use."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import Row, select
from sqlalchemy.orm import Session, aliased

from app.domain.knowledge import Passage
from app.domain.views import Role
from app.store.db.desk_models import ReplyDraft
from app.store.db.models import Message
from app.store.knowledge.access import is_admin, usable_documents


def withheld(session: Session, reviewer_id: str, message_ids: Collection[str]) -> set[str]:
    """Returns those of the replies whose text the reviewer may not read.

    A reply may quote its own sources, what earlier replies of its conversation quoted, and earlier drafts, which its
    user may have put into a message. Documents that have been
    removed have no rights left to ask: only an admin may read what rests on them.
    """
    if session.scalar(select(is_admin(reviewer_id))):
        return set()
    earlier = aliased(Message)
    own = session.execute(
        select(Message.id, Message.sources).where(
            Message.id.in_(message_ids), Message.role == Role.ASSISTANT, Message.sources.is_not(None)
        )
    ).all()
    above = session.execute(
        select(Message.id, earlier.sources)
        .join(earlier, (earlier.conversation_id == Message.conversation_id) & (earlier.position < Message.position))
        .where(Message.id.in_(message_ids), Message.role == Role.ASSISTANT, earlier.sources.is_not(None))
    ).all()
    drafts = session.execute(
        select(Message.id, ReplyDraft.sources)
        .join(
            ReplyDraft,
            (ReplyDraft.conversation_id == Message.conversation_id) & (ReplyDraft.created_at <= Message.created_at),
        )
        .where(
            Message.id.in_(message_ids),
            Message.role == Role.ASSISTANT,
            ReplyDraft.used_at.is_not(None),
            ReplyDraft.sources.is_not(None),
        )
    ).all()
    return _unreadable(session, reviewer_id, (*own, *above, *drafts))


def withheld_drafts(session: Session, reviewer_id: str, draft_ids: Collection[str]) -> set[str]:
    """Returns those of the drafts whose text the reviewer may not read.

    A draft may quote its own sources, those of earlier drafts, which it may be a change of, and what replies of its
    conversation quoted, which its user may have copied into it.
    """
    if session.scalar(select(is_admin(reviewer_id))):
        return set()
    earlier = aliased(ReplyDraft)
    drafts = session.execute(
        select(ReplyDraft.id, earlier.sources)
        .join(earlier, (earlier.conversation_id == ReplyDraft.conversation_id) & (earlier.id <= ReplyDraft.id))
        .where(ReplyDraft.id.in_(draft_ids), earlier.sources.is_not(None))
    ).all()
    replies = session.execute(
        select(ReplyDraft.id, Message.sources)
        .join(Message, Message.conversation_id == ReplyDraft.conversation_id)
        .where(ReplyDraft.id.in_(draft_ids), Message.sources.is_not(None))
    ).all()
    return _unreadable(session, reviewer_id, (*drafts, *replies))


def _unreadable(
    session: Session, reviewer_id: str, rows: Iterable[Row[tuple[str, tuple[Passage, ...] | None]]]
) -> set[str]:
    """Those of the ids with a source that the reviewer may not read."""
    rests_on: dict[str, set[str]] = {}
    for id, sources in rows:
        rests_on.setdefault(id, set()).update(source.document_id for source in sources or ())
    usable = usable_documents(session, reviewer_id, set().union(*rests_on.values()))
    return {id for id, documents in rests_on.items() if not documents <= usable}
