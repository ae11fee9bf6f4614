"""Folders of conversations. Every query takes the user's id."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.domain.folders import FolderView, folder_name
from app.domain.ids import new_id
from app.errors import Conflict, LimitReached, NotFound
from app.store.db.database import Database
from app.store.db.models import Account, Conversation, Folder
from app.store.db.rows import change_rows, is_id

MAX_FOLDERS = 200
"""Of a user."""

NO_FOLDER = "You have no such folder. It may have been deleted."


class Folders:
    """The repository of folders."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, user_id: str) -> list[FolderView]:
        """The user's folders by name, each with the number of its conversations, without archived ones."""
        listed = (
            (Conversation.folder_id == Folder.id)
            & (Conversation.user_id == user_id)
            & Conversation.archived.is_(False)
            & Conversation.deletion.is_(None)
        )
        query = (
            select(Folder.id, Folder.name, func.count(Conversation.id))
            .outerjoin(Conversation, listed)
            .where(Folder.user_id == user_id)
            .group_by(Folder.id, Folder.name)
        )
        rows = await self._database.read(lambda session: session.execute(query).all())
        return sorted((FolderView(*row) for row in rows), key=lambda folder: folder.name.casefold())

    async def create(self, user_id: str, name: str) -> FolderView:
        """Creates an empty folder.

        Raises:
            InvalidInput: the name is empty or too long.
            Conflict: the user has a folder of this name.
            LimitReached: the user has as many folders as they may.
        """
        name = folder_name(name)

        def work(session: Session) -> FolderView:
            lock_folders(session, user_id)
            _require_free(session, user_id, name)
            (id,) = add_folders(session, user_id, [name]).values()
            return FolderView(id, name, 0)

        return await self._database.write(work)

    async def rename(self, user_id: str, folder_id: str, name: str) -> None:
        """Renames a folder.

        Raises:
            InvalidInput: the name is empty or too long.
            NotFound: the user has no such folder.
            Conflict: another one has this name.
        """
        name = folder_name(name)

        def work(session: Session) -> None:
            lock_folders(session, user_id)
            folder = owned_folder(session, user_id, folder_id)
            if folder.name != name:
                _require_free(session, user_id, name)
                folder.name = name

        await self._database.write(work)

    async def delete(self, user_id: str, folder_id: str) -> None:
        """Deletes a folder. Its conversations stay, in no folder.

        Raises:
            NotFound: the user has no such folder.
        """

        def work(session: Session) -> None:
            lock_folders(session, user_id)
            folder = owned_folder(session, user_id, folder_id)
            change_rows(session, update(Conversation).where(Conversation.folder_id == folder.id).values(folder_id=None))
            session.delete(folder)

        await self._database.write(work)


def lock_folders(session: Session, user_id: str) -> None:
    """Two changes of one user's folders are one after the other. Moving a conversation into one counts as a change."""
    session.execute(select(Account.id).where(Account.id == user_id).with_for_update(key_share=True))


def owned_folder(session: Session, user_id: str, folder_id: str) -> Folder:
    """The user's folder.

    Raises:
        NotFound: it is missing or another user's.
    """
    folder = session.get(Folder, folder_id) if is_id(folder_id) else None
    if folder is None or folder.user_id != user_id:
        raise NotFound(NO_FOLDER)
    return folder


def add_folders(session: Session, user_id: str, names: Collection[str]) -> dict[str, str]:
    """Ids by name: of the user's folders, and of new ones for the names that none has. Needs :func:`lock_folders`.

    Raises:
        LimitReached: these would be more folders than a user may have.
    """
    rows = session.execute(select(Folder.name, Folder.id).where(Folder.user_id == user_id)).tuples()
    known = dict(rows.all())
    new = sorted(set(names) - known.keys())
    if new and len(known) + len(new) > MAX_FOLDERS:
        raise LimitReached(
            f"With this you would have {len(known) + len(new)} folders, and {MAX_FOLDERS} is the most. "
            "Nothing was added. Delete a folder first."
        )
    made = {name: new_id() for name in new}
    now = datetime.now(UTC)
    session.add_all(Folder(id=id, user_id=user_id, name=name, created_at=now) for name, id in made.items())
    session.flush()
    return {name: made.get(name) or known[name] for name in names}


def folder_names(session: Session, folder_ids: Sequence[str | None]) -> dict[str, str]:
    """Names by id."""
    ids = {id for id in folder_ids if id is not None}
    if not ids:
        return {}
    return dict(session.execute(select(Folder.id, Folder.name).where(Folder.id.in_(ids))).tuples().all())


def _require_free(session: Session, user_id: str, name: str) -> None:
    if session.scalar(select(Folder.id).where(Folder.user_id == user_id, Folder.name == name)) is not None:
        raise Conflict(f"You have a folder named “{name}” already. Choose another name.")
