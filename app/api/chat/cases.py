"""Chat API: what a case becomes: a summary, or a proposed article of the knowledge base."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.articles import ArticleView
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID
from app.turns.summaries import CaseSummary

router = APIRouter(prefix="/api/conversations/{conversation_id}", tags=["cases"])


class ArticleRequest(RequestModel):
    """Where to propose an article."""

    collection: str | None = Field(
        None, max_length=100, description="Id of a collection that the caller may edit; default: Knowledge."
    )


@dataclass(frozen=True, slots=True)
class ProposedArticle:
    """A new proposal."""

    article: ArticleView
    notice: str | None  #: a sentence for the agent: that it is a template, or cut off


@router.post("/summary")
async def summarise(conversation_id: str, user_id: UserId, services: ServicesDep) -> CaseSummary:
    """Summarises a conversation, with the messages that each sentence rests on. Nothing of it is saved."""
    chats = await services.chats_with(conversation_id)
    return await services.summaries.write(user_id, chats.conversations, conversation_id)


@router.post("/article", status_code=201)
async def propose_article(
    conversation_id: str, wanted: ArticleRequest, user_id: UserId, services: ServicesDep
) -> ProposedArticle:
    """Proposes an article made from a conversation. It is not searched until an editor publishes it."""
    collection_id = wanted.collection or KNOWLEDGE_COLLECTION_ID
    chats = await services.chats_with(conversation_id)
    await chats.conversations.get(user_id, conversation_id, limit=1)
    articles = services.knowledge.articles
    await articles.require_room(user_id, collection_id)  # before the model writes for nothing
    draft = await services.article_writer.write(user_id, chats.conversations, conversation_id)
    return ProposedArticle(await articles.propose(user_id, collection_id, draft.title, draft.body), draft.notice)
