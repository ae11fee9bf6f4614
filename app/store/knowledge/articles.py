"""Proposed articles, for those who may edit their collection. None is searched."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Row, Select, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.articles import MAX_BODY_CHARS, ArticleView
from app.domain.audit import AuditAction
from app.domain.ids import new_id
from app.domain.text import MAX_TITLE_CHARS, clean_text, shown_name
from app.errors import InvalidInput, LimitReached, NotAllowed, NotFound
from app.store.db.database import Database
from app.store.db.knowledge_models import Article, Collection
from app.store.db.models import Account
from app.store.db.rows import change_rows, is_id
from app.store.db.rows import shown_name as name_of
from app.store.desk.audit import add_event
from app.store.knowledge.access import NO_COLLECTION, can_edit, may_edit, used_collection

MAX_PROPOSALS = 200
"""Of a collection: more are not looked through."""
NO_ARTICLE = "There is no such proposed article. It may have been published or discarded, or you may not edit it."


class Articles:
    """The repository of proposed articles. Every method takes the user, who must have the right to edit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def require_room(self, user_id: str, collection_id: str) -> None:
        """Checks that the user may propose an article for the collection.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
            NotAllowed: the user may not edit it.
            LimitReached: it has as many proposed articles as it may.
        """
        await self._database.read(lambda session: _require_room(session, user_id, collection_id))

    async def propose(self, user_id: str, collection_id: str, title: str, body: str) -> ArticleView:
        """Saves a proposed article.

        Raises:
            NotFound, NotAllowed, LimitReached: see :meth:`require_room`.
            InvalidInput: the title or the body is empty or too long.
        """
        title, body = _checked(title, body)

        def work(session: Session) -> ArticleView:
            _require_room(session, user_id, collection_id)
            now = datetime.now(UTC)
            row = Article(
                id=new_id(), collection_id=collection_id, title=title, body=body, created_at=now, updated_at=now
            )
            row.author_id = user_id
            session.add(row)
            add_event(session, user_id, AuditAction.ARTICLE_PROPOSED, row.id, collection=collection_id)
            session.flush()
            return _view(session.execute(_articles(user_id).where(Article.id == row.id)).one())

        try:
            return await self._database.write(work)
        except IntegrityError as error:  # the collection was deleted meanwhile
            raise NotFound(NO_COLLECTION) from error

    async def of_collection(self, user_id: str, collection_id: str) -> list[ArticleView]:
        """The proposed articles, latest first; none for a user who may use the collection, and not edit it.

        Raises:
            NotFound: the collection is missing, or the user may not use it.
        """

        def work(session: Session) -> list[ArticleView]:
            used_collection(session, user_id, collection_id)
            rows = session.execute(
                _articles(user_id).where(Article.collection_id == collection_id).order_by(Article.id.desc())
            )
            return [_view(row) for row in rows]

        return await self._database.read(work)

    async def get(self, user_id: str, article_id: str) -> ArticleView:
        """The article.

        Raises:
            NotFound: it is missing, or the user may not edit it.
        """

        def work(session: Session) -> ArticleView:
            _owned(session, user_id, article_id)
            return _view(session.execute(_articles(user_id).where(Article.id == article_id)).one())

        return await self._database.read(work)

    async def change(self, user_id: str, article_id: str, title: str, body: str) -> ArticleView:
        """Saves the article's new text.

        Raises:
            NotFound: it is missing, or the user may not edit it.
            InvalidInput: the title or the body is empty or too long.
        """
        title, body = _checked(title, body)

        def work(session: Session) -> ArticleView:
            row = _owned(session, user_id, article_id, lock=True)  # or it may be gone when it is written
            row.title, row.body, row.updated_at = title, body, datetime.now(UTC)
            session.flush()
            return _view(session.execute(_articles(user_id).where(Article.id == article_id)).one())

        return await self._database.write(work)

    async def discard(self, user_id: str, article_id: str, *, document_id: str | None = None) -> None:
        """Deletes the proposal.

        Args:
            document_id: of the document that it was published as; None: it is discarded.

        Raises:
            NotFound: it is missing, or the user may not edit it.
        """

        def work(session: Session) -> None:
            row = _owned(session, user_id, article_id)
            collection_id = row.collection_id
            if not change_rows(session, delete(Article).where(Article.id == article_id)):
                raise NotFound(NO_ARTICLE)
            if document_id is None:
                add_event(session, user_id, AuditAction.ARTICLE_DISCARDED, article_id, collection=collection_id)
            else:
                details = {"collection": collection_id, "document": document_id}
                add_event(session, user_id, AuditAction.ARTICLE_PUBLISHED, article_id, **details)

        await self._database.write(work)


def _require_room(session: Session, user_id: str, collection_id: str) -> None:
    used_collection(session, user_id, collection_id)
    if not can_edit(session, user_id, collection_id):
        raise NotAllowed("You may read this collection, but not change it. Ask an admin for the right to edit it.")
    count = select(func.count()).select_from(Article).where(Article.collection_id == collection_id)
    if (session.scalar(count) or 0) >= MAX_PROPOSALS:
        raise LimitReached(
            f"This collection has {MAX_PROPOSALS} proposed articles. Publish or discard some under Knowledge first."
        )


def _checked(title: str, body: str) -> tuple[str, str]:
    title, body = shown_name(title), clean_text(body).strip()
    if not title or len(title) > MAX_TITLE_CHARS:
        raise InvalidInput(f"An article's title has 1 to {MAX_TITLE_CHARS} characters.")
    if not body or len(body) > MAX_BODY_CHARS:
        raise InvalidInput(f"An article's text has 1 to {MAX_BODY_CHARS:,} characters.")
    return title, body


def _owned(session: Session, user_id: str, article_id: str, *, lock: bool = False) -> Article:
    query = (
        select(Article)
        .join(Collection, Collection.id == Article.collection_id)
        .where(Article.id == article_id, may_edit(user_id))
    )
    if lock:
        query = query.with_for_update(of=Article)
    found = session.scalars(query).one_or_none() if is_id(article_id) else None
    if found is None:
        raise NotFound(NO_ARTICLE)
    return found


def _articles(user_id: str) -> Select[tuple[Article, str]]:
    return (
        select(Article, name_of(Account))
        .join(Collection, Collection.id == Article.collection_id)
        .join(Account, Account.id == Article.author_id)
        .where(may_edit(user_id))
    )


def _view(row: Row[tuple[Article, str]]) -> ArticleView:
    article, author = row
    return ArticleView(
        id=article.id,
        collection=article.collection_id,
        title=article.title,
        body=article.body,
        author=author,
        created_at=article.created_at,
        updated_at=article.updated_at,
    )
