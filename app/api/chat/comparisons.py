"""Chat API: sends a message and compares several replies to it, each with its own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestId, RequestModel
from app.domain.chat_settings import ChatSettings
from app.turns.service import TurnRef

router = APIRouter(prefix="/api", tags=["turns"])

MIN_VARIANTS, MAX_VARIANTS = 2, 4

Variants = Annotated[
    list[ChatSettings],
    Field(
        min_length=MIN_VARIANTS,
        max_length=MAX_VARIANTS,
        description="The settings of each reply, two to four. They are not saved on the conversation. Each reply "
        "counts towards the limits as one message.",
    ),
]


class StartComparison(RequestModel):
    """A message to send, and the settings of the replies to compare."""

    text: str = Field(description="The user's message.")
    variants: Variants
    conversation_id: str | None = Field(None, description="The conversation; default: a new one.")
    tip_id: str | None = Field(None, description="The last message that the client shows, see POST /api/turns.")
    request_id: RequestId = None
    settings: ChatSettings | None = Field(None, description="Saved on the conversation; default: its current ones.")
    temporary: bool = Field(False, description="Start a conversation that is only kept in memory.")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The replies that were started, in the order of their settings. The first is the one that is shown."""

    turns: tuple[TurnRef, ...]


@router.post("/comparisons", status_code=201)
async def start_comparison(wanted: StartComparison, user_id: UserId, services: ServicesDep) -> Comparison:
    """Saves a message and starts several replies to it at once. All become versions of the reply.

    They are refused as a whole if the user's limits leave no room for all of them.
    """
    if wanted.conversation_id is not None:
        chats = await services.chats_with(wanted.conversation_id)
    else:
        chats = await services.temporary.begin(user_id) if wanted.temporary else services.chats
    refs = await chats.turns.compare(
        user_id,
        wanted.variants,
        text=wanted.text,
        conversation_id=wanted.conversation_id,
        tip_id=wanted.tip_id,
        settings=wanted.settings,
        request_id=wanted.request_id,
    )
    return Comparison(refs)
