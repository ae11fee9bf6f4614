"""Chat API: drafts of replies to customers."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from app.api.chat.turns import Collections
from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.turns.drafts import Draft, DraftChange, DraftRequest

router = APIRouter(prefix="/api/conversations/{conversation_id}", tags=["drafts"])


class DraftToWrite(RequestModel):
    """What a draft is written from."""

    text: str = Field(description="The customer's message.")
    notes: str = Field("", description="The agent's notes on the case.")
    collections: Collections = None
    draft: str = Field("", description="The draft as it is now, if it is to be changed.")
    change: DraftChange | None = Field(None, description="How to change the draft; default: write a new one.")


@router.post("/draft")
async def write_draft(conversation_id: str, wanted: DraftToWrite, user_id: UserId, services: ServicesDep) -> Draft:
    """Writes a draft of a reply to a customer, with this conversation's settings. It is no part of the conversation."""
    chats = await services.chats_with(conversation_id)
    settings = (await chats.conversations.get(user_id, conversation_id, limit=1)).settings
    if wanted.collections is not None:
        settings = settings.model_copy(update={"collections": tuple(wanted.collections)})
    request = DraftRequest(text=wanted.text, notes=wanted.notes, draft=wanted.draft, change=wanted.change)
    return await services.drafts.write(user_id, settings, request)
