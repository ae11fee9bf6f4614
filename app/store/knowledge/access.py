"""Rights to collections, as conditions of queries: no query of the knowledge base goes without one."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import BindParameter, ColumnElement, and_, exists, or_, select, true
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID
from app.domain.roles import UserRole
from app.errors import NotFound
from app.store.db.knowledge_models import Collection, CollectionMember, Document
from app.store.db.models import Account
from app.store.db.rows import is_id

NO_COLLECTION = "There is no such collection. It may have been deleted, or you may not use it."
NO_DOCUMENT = "There is no such document. It may have been removed, or you may not see it."

_IDS_PER_QUERY = 1000


def is_admin(user_id: str | BindParameter[str]) -> ColumnElement[bool]:
    """Whether the user may do everything. Without accounts the local user may."""
    if isinstance(user_id, str) and user_id == LOCAL_USER_ID:
        return true()
    return exists().where(Account.id == user_id, Account.role == UserRole.ADMIN, Account.disabled_at.is_(None))


def may_use(user_id: str | BindParameter[str]) -> ColumnElement[bool]:
    """Whether the user may search and read the query's :class:`Collection`.

    What every user may read is not for visitors: an inbox's account searches the collections that it is a member of.

    Args:
        user_id: of a user with an account, if it is a parameter.
    """
    is_user = exists().where(Account.id == user_id, Account.disabled_at.is_(None))
    is_person = exists().where(Account.id == user_id, Account.kind == "person")
    member = exists().where(CollectionMember.collection_id == Collection.id, CollectionMember.user_id == user_id)
    return or_(is_admin(user_id), and_(is_user, or_(and_(Collection.everyone, is_person), member)))


def may_edit(user_id: str) -> ColumnElement[bool]:
    """Whether the user may add documents to the query's :class:`Collection` and remove them."""
    writes = exists().where(Account.id == user_id, Account.role != UserRole.VIEWER, Account.disabled_at.is_(None))
    member = exists().where(
        CollectionMember.collection_id == Collection.id,
        CollectionMember.user_id == user_id,
        CollectionMember.may_edit,
    )
    return or_(is_admin(user_id), and_(writes, member))


def used_collection(session: Session, user_id: str, collection_id: str, *, lock: bool = False) -> Collection:
    """The collection, if the user may use it.

    Raises:
        NotFound: it is missing, or the user may not.
    """
    query = select(Collection).where(Collection.id == collection_id, may_use(user_id))
    if lock:
        query = query.with_for_update(key_share=True)
    found = session.scalars(query).one_or_none() if is_id(collection_id) else None
    if found is None:
        raise NotFound(NO_COLLECTION)
    return found


def used_document(session: Session, user_id: str, document_id: str, *, lock: bool = False) -> Document:
    """The document, if the user may use its collection.

    Raises:
        NotFound: it is missing, or the user may not.
    """
    query = (
        select(Document)
        .join(Collection, Collection.id == Document.collection_id)
        .where(Document.id == document_id, ~Document.removed, may_use(user_id))
    )
    if lock:
        query = query.with_for_update(of=Document)
    found = session.scalars(query).one_or_none() if is_id(document_id) else None
    if found is None:
        raise NotFound(NO_DOCUMENT)
    return found


def usable_documents(session: Session, user_id: str, document_ids: Iterable[str]) -> set[str]:
    """Returns those of the documents whose collection the user may use. Ids of no document are left out."""
    ids = sorted(filter(is_id, document_ids))
    usable: set[str] = set()
    for at in range(0, len(ids), _IDS_PER_QUERY):
        usable.update(
            session.scalars(
                select(Document.id)
                .join(Collection, Collection.id == Document.collection_id)
                .where(Document.id.in_(ids[at : at + _IDS_PER_QUERY]), ~Document.removed, may_use(user_id))
            )
        )
    return usable


def can_edit(session: Session, user_id: str, collection_id: str) -> bool:
    return session.scalar(select(may_edit(user_id)).where(Collection.id == collection_id)) is True
