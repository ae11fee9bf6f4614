"""Cases API: drafts of replies, with the sources of the case's inbox."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.cases.deps import CasesDep
from app.api.chat.drafts import DraftInUse, DraftToWrite, draft_response
from app.api.deps import Closing, ServicesDep, UserId
from app.cases.cases import Cases
from app.domain.case_views import CaseView, InboxView
from app.domain.chat_settings import ChatSettings
from app.turns.drafts import Draft

router = APIRouter(prefix="/api/cases/{case_id}", tags=["cases"])


@router.post("/draft", response_model=Draft)
async def write_case_draft(
    case_id: str,
    wanted: DraftToWrite,
    user_id: UserId,
    services: ServicesDep,
    cases: CasesDep,
    request: Request,
    closing: Closing,
) -> Response:
    """Writes a draft of a reply from the collections of the case's inbox. It is none of the case's messages."""
    case, inbox = await _case_and_inbox(cases, user_id, case_id)
    collections = inbox.collections if wanted.collections is None else wanted.collections
    settings = ChatSettings(collections=tuple(collections))
    events = services.chats.drafts.write(inbox.user_id, case.conversation_id, settings, wanted.as_request())
    return await draft_response(events, wanted, request, closing)


@router.put("/drafts/{draft_id}", status_code=204)
async def use_case_draft(
    case_id: str, draft_id: str, used: DraftInUse, user_id: UserId, services: ServicesDep, cases: CasesDep
) -> None:
    """Keeps what an agent made of a draft and did with it, for a review. Of several uses, the last one is kept."""
    case, inbox = await _case_and_inbox(cases, user_id, case_id)
    await services.chats.drafts.use(inbox.user_id, case.conversation_id, draft_id, used.text, used.used_as)


async def _case_and_inbox(cases: Cases, user_id: str, case_id: str) -> tuple[CaseView, InboxView]:
    """The case and the inbox whose account owns its conversation.

    Raises:
        NotFound: the case is missing, or the user may not read it. The guard admits no viewer.
    """
    case = await cases.details.view(user_id, case_id)
    return case, await cases.inboxes.get(user_id, case.inbox_id)
