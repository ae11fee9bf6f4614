"""Proposed articles and their publication as documents."""

from __future__ import annotations

import re

from app.domain.articles import ArticleView
from app.domain.knowledge import AddedDocument, DocumentSource
from app.store.knowledge.articles import Articles
from app.store.knowledge.documents import Documents

_SLASHES = re.compile(r"[/\\]+")


class Publishing:
    """Publishes proposed articles."""

    def __init__(self, articles: Articles, documents: Documents) -> None:
        self._articles = articles
        self._documents = documents

    async def publish(self, user_id: str, article_id: str, title: str, body: str) -> AddedDocument:
        """Makes a document of an article, with the text as it is given.

        If the server stops in between, the proposal stays, and publishing it again changes nothing else.

        Raises:
            NotFound: the article is missing, or the user may not edit its collection.
            InvalidInput: the title or the body is empty or too long.
            Conflict: the collection has another document of this name.
            LimitReached: the collection has as many documents or bytes as it may.
        """
        article = await self._articles.change(user_id, article_id, title, body)
        added = await self._documents.add(
            user_id,
            article.collection,
            file_name(article),
            f"# {article.title}\n\n{article.body}\n".encode(),
            kind="markdown",
            source=DocumentSource.CASE,
            replace=False,
        )
        await self._articles.discard(user_id, article_id, document_id=added.id)
        return added


def file_name(article: ArticleView) -> str:
    """The name of the document that an article becomes."""
    return f"{_SLASHES.sub('-', article.title)}.md"
