"""Changes many conversations of a user at once. Every query takes the user's id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.domain.storage import StorageLimits
from app.errors import InvalidInput, NotFound
from app.store.chat.conversations import MAX_TAGS, clean_tags
from app.store.chat.folders import lock_folders, owned_folder
from app.store.chat.storage_use import storage_use
from app.store.db.database import Database
from app.store.db.models import Conversation, ConversationTag
from app.store.db.rows import NO_CONVERSATION, change_rows, is_id


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkChange:
    """What is changed in each of some conversations."""

    add_tags: Sequence[str] = ()  #: to those that it has
    archived: bool | None = None  #: None: as it is
    moves: bool = False  #: into ``folder_id``
    folder_id: str | None = None  #: None: out of any folder


class BulkChanges:
    """The repository of changes to many conversations. Those that are missing or another user's are left out."""

    def __init__(self, database: Database, limits: StorageLimits | None = None) -> None:
        """``limits``: storage limits per user; None is no limit."""
        self._database = database
        self._limits = limits or StorageLimits()

    async def change(self, user_id: str, conversation_ids: Sequence[str], change: BulkChange) -> int:
        """Makes the whole change, or none of it; returns how many conversations were changed.

        Raises:
            InvalidInput: a tag is empty or too long, or a conversation would have too many.
            NotFound: the folder, or each of the conversations, is missing or another user's.
            LimitReached: the user would have too many different tags.
        """
        tags = clean_tags(change.add_tags)
        values: dict[str, Any] = {} if change.archived is None else {"archived": change.archived}
        if change.moves:
            values["folder_id"] = change.folder_id
        if not tags and not values:
            return 0

        def work(session: Session) -> int:
            if change.moves and change.folder_id is not None:
                lock_folders(session, user_id)  # the folder is not deleted meanwhile
                owned_folder(session, user_id, change.folder_id)
            own = _own(session, user_id, conversation_ids)
            if tags:
                self._add_tags(session, user_id, own, tags)
            if values:
                change_rows(session, update(Conversation).where(Conversation.id.in_(own)).values(values))
            return len(own)

        return await self._database.write(work)

    def _add_tags(self, session: Session, user_id: str, own: Sequence[str], tags: Sequence[str]) -> None:
        before = None if self._limits == StorageLimits() else storage_use(session, user_id)
        tagged = ConversationTag.conversation_id.in_(own)
        pairs = select(ConversationTag.conversation_id, ConversationTag.tag)
        there = set(session.execute(pairs.where(tagged, ConversationTag.tag.in_(tags))).tuples())
        new = [(id, tag) for id in own for tag in tags if (id, tag) not in there]
        session.add_all(ConversationTag(conversation_id=id, tag=tag) for id, tag in new)
        session.flush()
        counts = select(func.count()).where(tagged).group_by(ConversationTag.conversation_id)
        if max(session.scalars(counts), default=0) > MAX_TAGS:
            raise InvalidInput(f"A conversation can have at most {MAX_TAGS} tags. Nothing was changed.")
        if before is not None:
            self._limits.require_kept(storage_use(session, user_id), before)


def _own(session: Session, user_id: str, conversation_ids: Sequence[str]) -> list[str]:
    """The user's conversations among these, locked in the order of their ids."""
    wanted = [id for id in conversation_ids if is_id(id)]
    found = session.scalars(
        select(Conversation.id)
        .where(Conversation.id.in_(wanted), Conversation.user_id == user_id, Conversation.deletion.is_(None))
        .order_by(Conversation.id)
        .with_for_update(key_share=True)
    ).all()
    if not found:
        raise NotFound(NO_CONVERSATION)
    return list(found)
