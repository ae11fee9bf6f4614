"""Writes questions that the sources left unanswered, in the transactions that end and rate their replies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.orm import Session

from app.domain.gaps import GapReason
from app.store.db.knowledge_models import Gap
from app.store.db.models import Message, Turn, table_of
from app.store.db.prepared_statements import Prepared, insert_into

_GAP = table_of(Gap)
_NEW = insert_into(_GAP, "message_id reason conversation_id collections created_at done_at done_by")
_EARLIER = Prepared(
    delete(_GAP).where(_GAP.c.message_id == bindparam("message"), _GAP.c.reason != GapReason.DISLIKED.value)
)


def write_gap(
    connection: Connection, message_id: str, conversation_id: str, reason: GapReason | None, collections: Sequence[str]
) -> None:
    """Records how a reply from sources ended; a reply that was resumed may have ended before.

    Args:
        reason: None if it answers its question.
    """
    _EARLIER.run(connection, {"message": message_id})
    if reason is not None:
        values = {"collections": list(collections), "created_at": datetime.now(UTC), "done_at": None, "done_by": None}
        ids = {"message_id": message_id, "conversation_id": conversation_id}
        _NEW.run(connection, {"reason": reason.value, **ids, **values})


def write_disliked(session: Session, message: Message, *, disliked: bool) -> None:
    """Records that a reply from sources was rated down, or that it no longer is. Other replies leave no gap."""
    row = session.get(Gap, (message.id, GapReason.DISLIKED.value))
    if not disliked:
        if row is not None:
            session.delete(row)
        return
    params = session.scalar(select(Turn.params).where(Turn.message_id == message.id)) or {}
    if not (collections := params.get("collections")) and not message.sources:
        return
    if row is None:
        row = Gap(message_id=message.id, reason=GapReason.DISLIKED.value, conversation_id=message.conversation_id)
        session.add(row)
    row.collections, row.created_at = list(collections or ()), datetime.now(UTC)
    row.done_at = row.done_by = None  # it has come again
