"""Transfers the history from before accounts were enabled."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.ids import LOCAL_USER_ID
from app.store.db.desk_models import Feedback
from app.store.db.models import Conversation, Folder, Message, SavedPreset
from app.store.db.response_models import StoredResponse
from app.store.db.rows import change_rows
from app.store.desk.audit import add_event


def take_over(session: Session, user_id: str) -> int:
    """Gives the local user's conversations and stored responses to a user; returns how many conversations."""
    # A conversation imported by both stays twice; a later import finds only one of the two.
    their_origins = select(Conversation.imported_from).where(
        Conversation.user_id == user_id, Conversation.imported_from.is_not(None)
    )
    local = Conversation.user_id == LOCAL_USER_ID
    twice = update(Conversation).where(local, Conversation.imported_from.in_(their_origins.scalar_subquery()))
    change_rows(session, twice.values(imported_from=None))
    # Each word of the search index says whose it is.
    of_local = Message.conversation_id.in_(select(Conversation.id).where(local))
    change_rows(session, update(Message).where(of_local).values(indexed=False))
    taken = change_rows(session, update(Conversation).where(local).values(user_id=user_id, indexed=False))
    _take_folders(session, user_id)
    their_presets = select(SavedPreset.name).where(SavedPreset.user_id == user_id)
    presets = update(SavedPreset).where(
        SavedPreset.user_id == LOCAL_USER_ID, SavedPreset.name.not_in(their_presets.scalar_subquery())
    )
    change_rows(session, presets.values(user_id=user_id))
    for table in (Feedback, StoredResponse):
        change_rows(session, update(table).where(table.user_id == LOCAL_USER_ID).values(user_id=user_id))
    if taken:
        add_event(session, user_id, AuditAction.HISTORY_TAKEN_OVER, user_id, conversations=taken)
    return taken


def _take_folders(session: Session, user_id: str) -> None:
    """Gives the local user's folders to a user; of two with one name, the user's takes what was in the other."""
    theirs = dict(session.execute(select(Folder.name, Folder.id).where(Folder.user_id == user_id)).tuples().all())
    for folder in session.scalars(select(Folder).where(Folder.user_id == LOCAL_USER_ID)).all():
        if (same := theirs.get(folder.name)) is None:
            folder.user_id = user_id
        else:
            in_it = Conversation.folder_id == folder.id
            change_rows(session, update(Conversation).where(in_it).values(folder_id=same))
            session.delete(folder)
    session.flush()
