"""Collections of documents, and who may use and edit them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, delete, func, select, true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.domain.knowledge import ChatTitle, CollectionMemberView, CollectionUse, CollectionView, InboxName
from app.errors import Conflict, NotAllowed, NotFound
from app.store.db.case_models import Inbox
from app.store.db.database import Database
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID, Collection, CollectionMember, Document
from app.store.db.models import Account, Conversation
from app.store.db.rows import change_rows, is_id, shown_name
from app.store.desk.audit import add_event
from app.store.knowledge.access import is_admin, may_edit, may_use, used_collection
from app.store.knowledge.stale_chunks import StaleChunks, hide_documents

MAX_NAMED_CHATS = 10

_ADMINS_ONLY = "Only admins can change collections."


class Collections:
    """The repository of collections. Users see those that they may use; admins change them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stale = StaleChunks(database)

    async def all(self, user_id: str) -> list[CollectionView]:
        """The collections that the user may use, by name."""
        return await self._database.read(lambda session: _views(session, user_id, true()))

    async def require_usable(self, user_id: str, collection_ids: list[str] | None) -> list[str]:
        """Returns the ids of these collections, or of all that the user may use.

        Raises:
            NotFound: one of them is missing, or the user may not use it.
        """

        def work(session: Session) -> list[str]:
            usable = set(session.scalars(select(Collection.id).where(may_use(user_id))))
            if collection_ids is None:
                return sorted(usable)
            for id in collection_ids:
                if id not in usable:
                    used_collection(session, user_id, id)  # raises
            return list(dict.fromkeys(collection_ids))

        return await self._database.read(work)

    async def open_to(self, user_ids: Sequence[str], collection_ids: Sequence[str]) -> list[str]:
        """Returns those of the collections that all of these users may use, in their order. Leaves out missing ones."""
        if not collection_ids:
            return []
        rights = and_(*(may_use(user_id) for user_id in user_ids))
        among = select(Collection.id).where(Collection.id.in_(filter(is_id, collection_ids)), rights)
        usable = await self._database.read(lambda session: set(session.scalars(among)))
        return [id for id in dict.fromkeys(collection_ids) if id in usable]

    async def create(self, user_id: str, name: str, *, description: str = "", everyone: bool = False) -> CollectionView:
        """Creates a collection.

        Raises:
            NotAllowed: the user is no admin.
            Conflict: there is a collection of this name.
        """

        def work(session: Session) -> CollectionView:
            _require_admin(session, user_id)
            row = Collection(
                id=new_id(), name=name, description=description, everyone=everyone, created_at=datetime.now(UTC)
            )
            session.add(row)
            add_event(session, user_id, AuditAction.COLLECTION_CREATED, row.id, everyone=everyone)
            session.flush()
            return _views(session, user_id, Collection.id == row.id)[0]

        return await self._named(work)

    async def change(
        self,
        user_id: str,
        collection_id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        everyone: bool | None = None,
    ) -> CollectionView:
        """Changes what is given.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
            NotAllowed: the user is no admin.
            Conflict: there is another collection of this name.
        """
        given = {"name": name, "description": description, "everyone": everyone}
        changed = {field: value for field, value in given.items() if value is not None}

        def work(session: Session) -> CollectionView:
            row = _administered(session, user_id, collection_id)
            for field, value in changed.items():
                setattr(row, field, value)
            details = {"everyone": everyone} if everyone is not None else {}
            add_event(session, user_id, AuditAction.COLLECTION_CHANGED, collection_id, **details)
            session.flush()
            return _views(session, user_id, Collection.id == collection_id)[0]

        return await self._named(work)

    async def use(self, user_id: str, collection_id: str) -> CollectionUse:
        """What deleting the collection would touch.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> CollectionUse:
            _administered(session, user_id, collection_id)
            # The text decides for most chats; a system prompt may hold the id, too.
            rows = session.execute(
                select(Conversation.id, Conversation.user_id, Conversation.title, Conversation.settings)
                .where(
                    Conversation.deletion.is_(None),
                    cast(Conversation.settings, Text).contains(collection_id, autoescape=True),
                )
                .order_by(Conversation.updated_at.desc())
            )
            using = [row for row in rows if collection_id in row.settings.get("collections", ())]
            own = [ChatTitle(id=row.id, title=row.title) for row in using if row.user_id == user_id]
            return CollectionUse(
                can_delete=collection_id != KNOWLEDGE_COLLECTION_ID,
                documents=_count_documents(session, collection_id),
                chats=len(using),
                own_chats=own[:MAX_NAMED_CHATS],
                inboxes=[InboxName(id=inbox.id, name=inbox.name) for inbox in _inboxes_using(session, collection_id)],
            )

        return await self._database.read(work)

    async def delete(self, user_id: str, collection_id: str) -> None:
        """Deletes a collection with its documents, and takes it out of inboxes. Citations keep their quotations.

        Nothing finds the documents from the first of several transactions on. If the program ends between them, the
        collection is there without documents.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
            NotAllowed: the user is no admin.
            Conflict: it is the one that every knowledge base has.
        """

        def remove_documents(session: Session) -> int:
            _administered(session, user_id, collection_id)
            if collection_id == KNOWLEDGE_COLLECTION_ID:
                raise Conflict("This collection always exists. Remove its documents instead.")
            return hide_documents(session, collection_id)

        def work(session: Session) -> None:
            name = _administered(session, user_id, collection_id).name
            documents = removed + _count_documents(session, collection_id)
            # A change of an inbox locks it before the collections that it gets. In the other order, PostgreSQL would
            # end one of the two.
            session.execute(select(Inbox.id).order_by(Inbox.id).with_for_update(key_share=True))
            session.execute(delete(Collection).where(Collection.id == collection_id))
            for inbox in _inboxes_using(session, collection_id):
                inbox.collections = [id for id in inbox.collections if id != collection_id]
                add_event(session, user_id, AuditAction.INBOX_CHANGED, inbox.id, fields="collections")
            add_event(session, user_id, AuditAction.COLLECTION_DELETED, collection_id, documents=documents, name=name)

        removed = await self._database.write(remove_documents)
        while await self._stale.clean_up(collection_id):
            pass
        await self._database.write(work)

    async def members(self, user_id: str, collection_id: str) -> list[CollectionMemberView]:
        """The users who are members of a collection, by name. An inbox's account is none: see :meth:`use`.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> list[CollectionMemberView]:
            _administered(session, user_id, collection_id)
            rows = session.execute(
                select(CollectionMember.user_id, shown_name(Account).label("name"), CollectionMember.may_edit)
                .join(Account, Account.id == CollectionMember.user_id)
                .where(CollectionMember.collection_id == collection_id, Account.kind == "person")
                .order_by("name", CollectionMember.user_id)
            )
            return [CollectionMemberView(user_id=row.user_id, name=row.name, may_edit=row.may_edit) for row in rows]

        return await self._database.read(work)

    async def set_member(self, user_id: str, collection_id: str, member_id: str, *, may_edit: bool) -> None:
        """Makes a user a member, or changes a member's right.

        Raises:
            NotFound: the collection or the account is missing, or the user may not use the collection.
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> None:
            _administered(session, user_id, collection_id)
            account = session.get(Account, member_id) if is_id(member_id) else None
            if account is None or account.kind != "person":  # an inbox's collections are chosen with the inbox
                raise NotFound("There is no such account.")
            session.merge(CollectionMember(collection_id=collection_id, user_id=member_id, may_edit=may_edit))
            add_event(
                session,
                user_id,
                AuditAction.COLLECTION_MEMBER_SET,
                collection_id,
                user_id=member_id,
                may_edit=may_edit,
            )

        await self._database.write(work)

    async def remove_member(self, user_id: str, collection_id: str, member_id: str) -> None:
        """Takes a member's right away.

        Raises:
            NotFound: the collection is missing, the user may not use it, or it has no such member.
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> None:
            _administered(session, user_id, collection_id)
            users = select(Account.id).where(Account.kind == "person")  # an inbox would go on to name the collection
            is_member = and_(
                CollectionMember.collection_id == collection_id,
                CollectionMember.user_id == member_id,
                CollectionMember.user_id.in_(users),
            )
            if not is_id(member_id) or not change_rows(session, delete(CollectionMember).where(is_member)):
                raise NotFound("This collection has no such member.")
            add_event(session, user_id, AuditAction.COLLECTION_MEMBER_REMOVED, collection_id, user_id=member_id)

        await self._database.write(work)

    async def _named(self, work: Any) -> CollectionView:
        try:
            changed: CollectionView = await self._database.write(work)
        except IntegrityError as error:
            raise Conflict("There is a collection of this name already. Choose another name.") from error
        return changed


def _inboxes_using(session: Session, collection_id: str) -> list[Inbox]:
    """The inboxes that answer from the collection, by name."""
    named = cast(Inbox.collections, Text).contains(collection_id, autoescape=True)
    return list(session.scalars(select(Inbox).where(named).order_by(Inbox.name, Inbox.id)))


def _require_admin(session: Session, user_id: str) -> None:
    if session.scalar(select(is_admin(user_id))) is not True:
        raise NotAllowed(_ADMINS_ONLY)


def _administered(session: Session, user_id: str, collection_id: str) -> Collection:
    row = used_collection(session, user_id, collection_id, lock=True)
    _require_admin(session, user_id)
    return row


def _count_documents(session: Session, collection_id: str) -> int:
    of_it = (Document.collection_id == collection_id, ~Document.removed)
    count = select(func.count()).select_from(Document).where(*of_it)
    return session.scalar(count) or 0


def _views(session: Session, user_id: str, which: ColumnElement[bool]) -> list[CollectionView]:
    of_it = (Document.collection_id == Collection.id, ~Document.removed)
    documents = select(func.count()).select_from(Document).where(*of_it).scalar_subquery()
    rows = session.execute(
        select(Collection, may_edit(user_id).label("may_edit"), documents.label("documents"))
        .where(may_use(user_id), which)
        .order_by(func.lower(Collection.name), Collection.id)
    )
    return [
        CollectionView(
            id=row.Collection.id,
            name=row.Collection.name,
            description=row.Collection.description,
            everyone=row.Collection.everyone,
            may_edit=bool(row.may_edit),
            documents=row.documents,
        )
        for row in rows
    ]
