"""Presets that users have saved, and what their new chats begin with."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from app.domain.chat_settings import ChatSettings
from app.domain.ids import new_id
from app.domain.presets import OwnPreset, own_preset
from app.errors import LimitReached, NotFound
from app.store.db.database import Database
from app.store.db.models import Account, SavedPreset
from app.store.db.rows import change_rows, is_id

MAX_PRESETS = 50
"""Of a user."""


class OwnPresets:
    """The repository of presets. Every method takes the user, and no other user's are ever touched."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, user_id: str) -> list[OwnPreset]:
        """The user's presets, by name."""
        query = select(SavedPreset).where(SavedPreset.user_id == user_id).order_by(SavedPreset.name)
        return await self._database.read(lambda session: [_view(row) for row in session.scalars(query)])

    async def save(self, user_id: str, name: str, settings: ChatSettings) -> OwnPreset:
        """Saves the sampling parameters of these settings; a preset of the same name is replaced.

        Raises:
            InvalidInput: the name is empty, too long or that of a preset of all users, or a value is out
                of range.
            LimitReached: the user has as many presets as they may.
        """
        made = own_preset(new_id(), name, settings)

        def work(session: Session) -> OwnPreset:
            _lock(session, user_id)
            here = SavedPreset.user_id == user_id
            row = session.scalars(select(SavedPreset).where(here, SavedPreset.name == made.name)).one_or_none()
            if row is None:
                if (session.scalar(select(func.count()).select_from(SavedPreset).where(here)) or 0) >= MAX_PRESETS:
                    raise LimitReached(f"You have {MAX_PRESETS} presets, and may have no more. Delete one first.")
                row = SavedPreset(id=made.id, user_id=user_id, name=made.name, created_at=datetime.now(UTC))
                session.add(row)
            row.settings = dict(made.values)
            session.flush()
            return _view(row)

        return await self._database.write(work)

    async def delete(self, user_id: str, preset_id: str) -> None:
        """Raises:
        NotFound: the user has no such preset.
        """

        def work(session: Session) -> int:
            here = (SavedPreset.id == preset_id, SavedPreset.user_id == user_id)
            return change_rows(session, delete(SavedPreset).where(*here))

        if not is_id(preset_id) or await self._database.write(work) == 0:
            raise NotFound("You have no such preset. It may have been deleted.")

    async def for_new_chats(self, user_id: str) -> ChatSettings | None:
        """The settings that the user's new chats begin with; None if they have chosen none."""
        query = select(Account.new_chat_settings).where(Account.id == user_id)
        stored = await self._database.read(lambda session: session.scalar(query))
        return None if stored is None else ChatSettings(**stored)

    async def use_for_new_chats(self, user_id: str, settings: ChatSettings | None) -> None:
        """New chats of the user begin with these settings; None: with the model's defaults.

        Raises:
            InvalidInput: a value is out of range.
        """
        stored = None
        if settings is not None:
            settings.sampling_params()
            stored = settings.model_dump(mode="json", exclude_defaults=True)
        change = update(Account).where(Account.id == user_id).values(new_chat_settings=stored)
        await self._database.write(lambda session: change_rows(session, change))


def _lock(session: Session, user_id: str) -> None:
    """Two saves of one user at once are one after the other; SQLite has one writer anyway."""
    session.execute(select(Account.id).where(Account.id == user_id).with_for_update(key_share=True))


def _view(row: SavedPreset) -> OwnPreset:
    return OwnPreset(row.id, row.name, row.settings)
