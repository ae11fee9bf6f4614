"""Knowledge API: proposed articles."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.knowledge.documents import Added
from app.api.request_model import RequestModel
from app.domain.articles import MAX_BODY_CHARS, ArticleView
from app.domain.text import MAX_TITLE_CHARS

router = APIRouter(prefix="/api/kb/articles", tags=["knowledge"])


class ArticleText(RequestModel):
    """The text of an article."""

    title: str = Field(max_length=MAX_TITLE_CHARS)
    body: str = Field(max_length=MAX_BODY_CHARS, description="Markdown without the title.")


@dataclass(frozen=True, slots=True)
class ArticleList:
    articles: list[ArticleView]


@router.get("")
async def list_articles(collection: str, user_id: UserId, services: ServicesDep) -> ArticleList:
    """Lists the proposed articles of a collection, latest first; none for those who may not edit it."""
    return ArticleList(await services.knowledge.articles.of_collection(user_id, collection))


@router.put("/{article_id}")
async def change_article(article_id: str, text: ArticleText, user_id: UserId, services: ServicesDep) -> ArticleView:
    """Saves the text of a proposed article."""
    return await services.knowledge.articles.change(user_id, article_id, text.title, text.body)


@router.post("/{article_id}/publish", status_code=202)
async def publish_article(article_id: str, text: ArticleText, user_id: UserId, services: ServicesDep) -> Added:
    """Makes a document of a proposed article, with this text. It is read in the background, then searched."""
    added = await services.knowledge.publishing.publish(user_id, article_id, text.title, text.body)
    return Added(added.id, added.version, added.state)


@router.delete("/{article_id}", status_code=204)
async def discard_article(article_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Discards a proposed article."""
    await services.knowledge.articles.discard(user_id, article_id)
