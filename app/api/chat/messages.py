"""Chat API: edits, regenerates, branches, deletes and rates messages. Messages form a tree; none is overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.api.chat.turns import Collections
from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.chat_settings import ChatSettings
from app.domain.feedback import FeedbackView, Opinion, Rating, Reason
from app.store.chat.deletions import Deletion
from app.turns.service import TurnRef
from app.turns.turn_requests import ToolDecision

router = APIRouter(prefix="/api/messages/{message_id}", tags=["messages"])
deletions_router = APIRouter(prefix="/api/deletions", tags=["messages"])


ToolUseId = Annotated[str, Field(max_length=200)]


class Continuation(RequestModel):
    """Options of a continued reply."""

    settings: ChatSettings | None = Field(None, description="Saved on the conversation; default: its current ones.")


class AnotherReply(Continuation):
    """Options of another reply."""

    collections: Collections = None
    request_id: str | None = Field(
        None, min_length=1, max_length=100, description="Idempotency key, see POST /api/turns."
    )


class EditedMessage(AnotherReply):
    """The edited message."""

    text: str = Field(description="The new text.")


class GivenFeedback(RequestModel):
    """The user's rating of a reply."""

    rating: Rating = Field(description="Thumb up or down.")
    reasons: tuple[Reason, ...] = Field((), max_length=len(Reason), description="Reasons that go with the rating.")
    comment: str = Field("", description="Free text.")


@dataclass(frozen=True, slots=True)
class ConversationRef:
    """The conversation to show."""

    conversation_id: str


@router.post("/edit", status_code=201)
async def edit_message(message_id: str, edited: EditedMessage, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Edits a message: adds the new text as a sibling, and replies to it. The old message and its replies stay."""
    return await (await services.chats_with(message_id)).turns.edit(
        user_id,
        message_id,
        text=edited.text,
        settings=edited.settings,
        collections=edited.collections,
        request_id=edited.request_id,
    )


@router.post("/regenerate", status_code=201)
async def regenerate_reply(message_id: str, options: AnotherReply, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Generates another reply next to this one, or to this message. Existing replies stay."""
    return await (await services.chats_with(message_id)).turns.regenerate(
        user_id,
        message_id,
        settings=options.settings,
        collections=options.collections,
        request_id=options.request_id,
    )


@router.post("/continue", status_code=201)
async def continue_reply(message_id: str, how: Continuation, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Continues a reply that was stopped, was interrupted, or reached its maximum length."""
    return await (await services.chats_with(message_id)).turns.resume(user_id, message_id, settings=how.settings)


class GivenDecision(Continuation):
    """The user's decision about the calls of tools that wait for it: each of them is allowed or denied."""

    allow: frozenset[ToolUseId] = Field(frozenset(), max_length=100, description="Ids of the calls that may run.")
    allow_for_chat: frozenset[ToolUseId] = Field(
        frozenset(),
        max_length=100,
        description="Ids of more calls that may run, and whose tools are not asked about again in this conversation.",
    )
    deny: frozenset[ToolUseId] = Field(frozenset(), max_length=100, description="Ids of the calls that may not.")


@router.post("/tools", status_code=201)
async def decide_tools(message_id: str, given: GivenDecision, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Goes on with a reply that waits for a decision about its calls of tools; runs those that are allowed."""
    decision = ToolDecision(given.allow | given.allow_for_chat, given.deny, given.allow_for_chat)
    return await (await services.chats_with(message_id)).turns.decide(
        user_id, message_id, decision, settings=given.settings
    )


@router.post("/show", status_code=204)
async def show_message(message_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Shows the branch of this message."""
    await (await services.chats_with(message_id)).conversations.show(user_id, message_id)


@router.post("/branch", status_code=201)
async def branch_conversation(message_id: str, user_id: UserId, services: ServicesDep) -> ConversationRef:
    """Copies the conversation up to this message into a new one."""
    return ConversationRef(await (await services.chats_with(message_id)).conversations.branch(user_id, message_id))


@router.delete("")
async def delete_message(message_id: str, user_id: UserId, services: ServicesDep) -> Deletion:
    """Deletes a message with all that follows it. Can be undone for an hour."""
    return await (await services.chats_with(message_id)).deletions.delete(user_id, message_id)


@router.put("/feedback")
async def rate_reply(message_id: str, given: GivenFeedback, user_id: UserId, services: ServicesDep) -> FeedbackView:
    """Rates a reply; replaces an earlier rating."""
    opinion = Opinion(given.rating, given.reasons, given.comment)
    return await (await services.chats_with(message_id)).feedback.put(user_id, message_id, opinion)


@router.delete("/feedback", status_code=204)
async def unrate_reply(message_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Removes the rating of a reply. Does nothing if there is none."""
    await (await services.chats_with(message_id)).feedback.remove(user_id, message_id)


@deletions_router.post("/{deletion_id}/undo")
async def undo_deletion(deletion_id: str, user_id: UserId, services: ServicesDep) -> ConversationRef:
    """Undoes a deletion."""
    return ConversationRef(await (await services.chats_with(deletion_id)).deletions.undo(user_id, deletion_id))
