"""Chat API: what fills the model's context, and the prompts themselves."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.chat_settings import ChatSettings
from app.services.chats import Chats
from app.services.container import Services
from app.turns.context_use import ContextView, PromptView

router = APIRouter(tags=["context"])

_MAX_OFFSET = 2**31 - 1


class NextMessage(RequestModel):
    """A message that has not been sent."""

    text: str = Field("", description="What is typed so far.")
    conversation_id: str | None = Field(None, description="The conversation; default: a new one.")
    settings: ChatSettings | None = Field(None, description="Default: those of the conversation.")


class NextPrompt(NextMessage):
    """A message that has not been sent, and which part of its prompt to show."""

    offset: int = Field(0, ge=0, le=_MAX_OFFSET, description="Tokens of the prompt before the part to show.")


@router.post("/api/context")
async def count_context(message: NextMessage, user_id: UserId, services: ServicesDep) -> ContextView:
    """Counts what the prompt of a message would hold, and the room for its reply. Sends nothing."""
    chats = await _chats_of(services, message.conversation_id)
    return await chats.turns.context.count(user_id, message.text, message.conversation_id, message.settings)


@router.post("/api/context/prompt")
async def show_next_prompt(message: NextPrompt, user_id: UserId, services: ServicesDep) -> PromptView:
    """Shows the prompt that a message would make, with its special tokens. Sends nothing.

    Sources are searched when a message is sent, so they are not in it.
    """
    chats = await _chats_of(services, message.conversation_id)
    return await chats.turns.context.next_prompt(
        user_id, message.text, message.conversation_id, message.settings, message.offset
    )


@router.get("/api/messages/{message_id}/prompt")
async def show_prompt(
    message_id: str,
    user_id: UserId,
    services: ServicesDep,
    offset: Annotated[int, Query(ge=0, le=_MAX_OFFSET, description="Tokens before the part to show.")] = 0,
) -> PromptView:
    """Shows the prompt that a reply answers, with its special tokens, made again from what is stored."""
    return await (await services.chats_with(message_id)).turns.context.prompt_of(user_id, message_id, offset)


async def _chats_of(services: Services, conversation_id: str | None) -> Chats:
    return services.chats if conversation_id is None else await services.chats_with(conversation_id)
