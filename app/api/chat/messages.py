"""The chat's own API: going another way from a message. Messages form a tree, and nothing in it is overwritten."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import ServicesDep, UserId
from app.domain.chat_settings import ChatSettings
from app.domain.feedback import FeedbackView, Opinion, Rating, Reason
from app.store.chat.deletions import Deletion
from app.turns.service import TurnRef

router = APIRouter(prefix="/api/messages/{message_id}", tags=["messages"])
deletions_router = APIRouter(prefix="/api/deletions", tags=["messages"])


class Continuation(BaseModel):
    """How to go on."""

    model_config = ConfigDict(extra="forbid")

    settings: ChatSettings | None = Field(None, description="Saved on the conversation; none uses its own.")


class AnotherReply(Continuation):
    """How to ask again."""

    request_id: str | None = Field(
        None, min_length=1, max_length=100, description="Any id of the client's own, see POST /api/turns."
    )


class EditedMessage(AnotherReply):
    """What to ask instead."""

    text: str = Field(description="The message as it should have been.")


class GivenFeedback(BaseModel):
    """What the person thinks of a reply."""

    model_config = ConfigDict(extra="forbid")

    rating: Rating = Field(description="A thumb up or down.")
    reasons: tuple[Reason, ...] = Field((), max_length=len(Reason), description="Why, of those that go with the thumb.")
    comment: str = Field("", description="In words of their own.")


@dataclass(frozen=True, slots=True)
class ConversationRef:
    """Where to look now."""

    conversation_id: str


@router.post("/edit", status_code=201)
async def edit_message(message_id: str, edited: EditedMessage, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Ask otherwise: the new text stands beside the message, which stays with all that followed it."""
    return await (await services.chats_with(message_id)).turns.edit(
        user_id, message_id, text=edited.text, settings=edited.settings, request_id=edited.request_id
    )


@router.post("/regenerate", status_code=201)
async def regenerate_reply(message_id: str, asked: AnotherReply, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Another reply beside this one, or to this message. The ones there are stay."""
    return await (await services.chats_with(message_id)).turns.regenerate(
        user_id, message_id, settings=asked.settings, request_id=asked.request_id
    )


@router.post("/continue", status_code=201)
async def continue_reply(message_id: str, how: Continuation, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Go on with a reply that was stopped, interrupted, or reached its maximum length."""
    return await (await services.chats_with(message_id)).turns.resume(user_id, message_id, settings=how.settings)


@router.post("/show", status_code=204)
async def show_message(message_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Show the branch that this message is on."""
    await (await services.chats_with(message_id)).conversations.show(user_id, message_id)


@router.post("/branch", status_code=201)
async def branch_conversation(message_id: str, user_id: UserId, services: ServicesDep) -> ConversationRef:
    """Copy the conversation up to this message into a new one."""
    return ConversationRef(await (await services.chats_with(message_id)).conversations.branch(user_id, message_id))


@router.delete("")
async def delete_message(message_id: str, user_id: UserId, services: ServicesDep) -> Deletion:
    """Delete it with all that follows it. For an hour that can be undone."""
    return await (await services.chats_with(message_id)).deletions.delete(user_id, message_id)


@router.put("/feedback")
async def rate_reply(message_id: str, given: GivenFeedback, user_id: UserId, services: ServicesDep) -> FeedbackView:
    """Say what you think of a reply, in place of what you said before."""
    opinion = Opinion(given.rating, given.reasons, given.comment)
    return await (await services.chats_with(message_id)).feedback.put(user_id, message_id, opinion)


@router.delete("/feedback", status_code=204)
async def unrate_reply(message_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Take back what you said about a reply. Where there is nothing, nothing happens."""
    await (await services.chats_with(message_id)).feedback.remove(user_id, message_id)


@deletions_router.post("/{deletion_id}/undo")
async def undo_deletion(deletion_id: str, user_id: UserId, services: ServicesDep) -> ConversationRef:
    """Bring back what was deleted."""
    return ConversationRef(await (await services.chats_with(deletion_id)).deletions.undo(user_id, deletion_id))
