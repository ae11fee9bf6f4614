"""Which documents a user may still read, of those that stored replies rest on."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import BindParameter, and_, bindparam, not_, select

from app.domain.ids import LOCAL_USER_ID
from app.store.db.database import Database
from app.store.db.knowledge_models import Collection, Document
from app.store.db.prepared_statements import Prepared, is_among
from app.store.db.rows import is_id
from app.store.knowledge.access import may_use


class SourceRights:
    """The rights to sources of replies, by their documents: a right that is taken away reaches old replies, too.

    Of a document that was removed there is no right left to ask: answers keep what they quote of it, but no model is
    given it again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usable(self, user_id: str, document_ids: Iterable[str]) -> set[str]:
        """Returns those of the documents that exist, and that the user may use."""
        return await self._among(_USABLE, user_id, document_ids)

    async def closed(self, user_id: str, document_ids: Iterable[str]) -> set[str]:
        """Returns those of the documents that exist, and that the user may not use."""
        return await self._among(_CLOSED, user_id, document_ids)

    async def _among(self, statements: dict[bool, Prepared], user_id: str, document_ids: Iterable[str]) -> set[str]:
        ids = sorted({id for id in document_ids if is_id(id)})
        if not ids:
            return set()
        statement, given = statements[user_id == LOCAL_USER_ID], {"user_id": user_id, "ids": ids}
        return {id for (id,) in await self._database.read_rows(lambda connection: statement.rows(connection, given))}


def _select(user_id: str | BindParameter[str], *, may: bool) -> Prepared:
    right = may_use(user_id)
    return Prepared(
        select(Document.id)
        .join(Collection, Collection.id == Document.collection_id)
        .where(is_among(Document.id, "ids"), and_(right, ~Document.removed) if may else not_(right))
    )


# Built once: constructing the conditions costs more than executing them. By whether the user is the local one.
_USABLE = {True: _select(LOCAL_USER_ID, may=True), False: _select(bindparam("user_id"), may=True)}
_CLOSED = {True: _select(LOCAL_USER_ID, may=False), False: _select(bindparam("user_id"), may=False)}
