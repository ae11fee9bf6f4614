"""Replies that a reviewer may not read: they may quote documents of collections that the reviewer may not use."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from app.domain.views import Role
from app.store.db.models import Message
from app.store.knowledge.access import is_admin, usable_documents


def withheld(session: Session, reviewer_id: str, message_ids: Collection[str]) -> set[str]:
    """Returns those of the replies whose text the reviewer may not read.

    A reply may quote its own sources, and what earlier replies of its conversation quoted. Documents that have been
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
    rests_on: dict[str, set[str]] = {}
    for id, sources in (*own, *above):
        rests_on.setdefault(id, set()).update(source.document_id for source in sources or ())
    usable = usable_documents(session, reviewer_id, set().union(*rests_on.values()))
    return {id for id, documents in rests_on.items() if not documents <= usable}
