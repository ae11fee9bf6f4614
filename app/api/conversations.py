"""The chat's own API: conversations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import ServicesDep, UserId
from app.domain.chat_settings import ChatSettings
from app.domain.views import ConversationSummary, ConversationView, Page

router = APIRouter(prefix="/api/conversations", tags=["conversations"])


class ConversationChange(BaseModel):
    """What may be changed on a conversation; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    title: str | None = Field(None, description="The new title.")
    settings: ChatSettings | None = Field(None, description="The new settings, all of them.")


@router.get("")
async def list_conversations(
    user_id: UserId,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: str | None = None,
    query: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[ConversationSummary]:
    """Newest first; ``query`` searches titles and texts; ``cursor`` is the last page's ``next_cursor``."""
    return await services.conversations.list(user_id, limit=limit, cursor=cursor, query=query)


@router.get("/{conversation_id}")
async def get_conversation(
    conversation_id: str,
    user_id: UserId,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: str | None = None,
) -> ConversationView:
    """The last ``limit`` messages, or those above the message ``before``."""
    return await services.conversations.get(user_id, conversation_id, limit=limit, before=before)


@router.patch("/{conversation_id}", status_code=204)
async def change_conversation(
    conversation_id: str, change: ConversationChange, user_id: UserId, services: ServicesDep
) -> None:
    """Rename it, or save its settings."""
    if change.settings is not None:
        change.settings.sampling_params()  # refuses what is out of range before anything is changed
    if change.title is not None:
        await services.conversations.rename(user_id, conversation_id, change.title)
    if change.settings is not None:
        await services.conversations.save_settings(user_id, conversation_id, change.settings)


@router.delete("/{conversation_id}", status_code=204)
async def delete_conversation(conversation_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Delete it for good. A reply still streaming is stopped first."""
    await services.turns.delete_conversation(user_id, conversation_id)
