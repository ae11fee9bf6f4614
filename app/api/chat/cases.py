"""Chat API: what a conversation becomes: a summary, or a proposed article of the knowledge base."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.api.client_left import CLIENT_LEFT, unless_client_leaves
from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.articles import ArticleView
from app.services.container import Services
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID
from app.turns.cases import Case, read_case
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


@router.post("/summary", response_model=CaseSummary)
async def summarise(
    conversation_id: str, user_id: UserId, services: ServicesDep, request: Request
) -> CaseSummary | Response:
    """Summarises a conversation, with the messages that each sentence rests on. Nothing of it is saved."""
    chats = await services.chats_with(conversation_id)
    case = await read_case(chats.conversations, user_id, conversation_id)
    return await summary_response(services, request, user_id, case)


@router.post("/article", status_code=201, response_model=ProposedArticle)
async def propose_article(
    conversation_id: str, wanted: ArticleRequest, user_id: UserId, services: ServicesDep, request: Request
) -> ProposedArticle | Response:
    """Proposes an article made from a conversation. It is not searched until an editor publishes it."""
    chats = await services.chats_with(conversation_id)
    case = await read_case(chats.conversations, user_id, conversation_id)
    return await article_response(services, request, user_id, case, wanted)


async def summary_response(services: Services, request: Request, user_id: str, case: Case) -> CaseSummary | Response:
    """The summary of a case that the user may read. The model stops if the client leaves."""
    summary = await unless_client_leaves(request, services.summaries.write(user_id, case))
    return summary or Response(status_code=CLIENT_LEFT)


async def article_response(
    services: Services, request: Request, user_id: str, case: Case, wanted: ArticleRequest
) -> ProposedArticle | Response:
    """The article made from a case that the user may read. If the client leaves while it is written, none is saved."""
    collection_id = wanted.collection or KNOWLEDGE_COLLECTION_ID
    articles = services.knowledge.articles
    await articles.require_room(user_id, collection_id)  # before the model writes for nothing
    draft = await unless_client_leaves(request, services.article_writer.write(user_id, case))
    if draft is None:
        return Response(status_code=CLIENT_LEFT)
    return ProposedArticle(await articles.propose(user_id, collection_id, draft.title, draft.body), draft.notice)
