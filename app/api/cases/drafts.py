"""Cases API: drafts of replies, with the sources of the case's inbox."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.cases.deps import CasesDep
from app.api.chat.drafts import DraftInUse, DraftToWrite, draft_response
from app.api.deps import Closing, ServicesDep, UserId
from app.turns.drafts import Draft

router = APIRouter(prefix="/api/cases/{case_id}", tags=["cases"])


@router.post("/draft", response_model=Draft)
async def write_case_draft(
    case_id: str,
    wanted: DraftToWrite,
    user_id: UserId,
    services: ServicesDep,
    _cases: CasesDep,
    request: Request,
    closing: Closing,
) -> Response:
    """Writes a draft of a reply from those of the inbox's collections that the caller may use. It is none of the case's
    messages."""
    events = await services.case_drafts.write(user_id, case_id, wanted.as_request(), wanted.collections)
    return await draft_response(events, wanted, request, closing)


@router.put("/drafts/{draft_id}", status_code=204)
async def use_case_draft(
    case_id: str, draft_id: str, used: DraftInUse, user_id: UserId, services: ServicesDep, _cases: CasesDep
) -> None:
    """Keeps what an agent made of a draft and did with it, for a review. Of several uses, the last one is kept."""
    await services.case_drafts.use(user_id, case_id, draft_id, used.text, used.used_as)
