"""Cases API: what the model makes of a case: a summary, or a proposed article of the knowledge base."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.cases.deps import CasesDep
from app.api.chat.cases import ArticleRequest, ProposedArticle, article_response, summary_response
from app.api.deps import ServicesDep, UserId
from app.cases.case_reading import case_for_article, case_for_summary
from app.turns.summaries import CaseSummary

router = APIRouter(prefix="/api/cases/{case_id}", tags=["cases"])


@router.post("/summary", response_model=CaseSummary)
async def summarise_case(
    case_id: str, user_id: UserId, services: ServicesDep, cases: CasesDep, request: Request
) -> CaseSummary | Response:
    """Summarises a case with its notes, and names the messages that each sentence rests on. Nothing of it is saved."""
    case = await case_for_summary(cases.details, user_id, case_id)
    return await summary_response(services, request, user_id, case)


@router.post("/article", status_code=201, response_model=ProposedArticle)
async def propose_case_article(
    case_id: str, wanted: ArticleRequest, user_id: UserId, services: ServicesDep, cases: CasesDep, request: Request
) -> ProposedArticle | Response:
    """Proposes an article made from a resolved case, without its notes. No search finds it until it is published."""
    case = await case_for_article(cases.details, user_id, case_id)
    return await article_response(services, request, user_id, case, wanted)
